"""Model of deduplication, with dictionaries over decoded records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from object_format.codecs.codec import Codec
from tests.object_format import model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from object_format.record_batch.records import Record

LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
HORIZON = 0x40


@dataclass(frozen=True, kw_only=True)
class Section:
    """Consecutive batches of one partition with absolute offsets; stored offsets are lower by `shift`."""

    batches: tuple[model.Batch, ...]
    shift: int = 0
    unique_keys: bool = False

    def stored(self) -> list[bytes]:
        return [model.encode(moved(batch, -self.shift)) for batch in self.batches]


def moved(batch: model.Batch, by: int) -> model.Batch:
    return replace(
        batch,
        base_offset=batch.base_offset + by,
        records=tuple(replace(record, offset=record.offset + by) for record in batch.records),
    )


def is_control(batch: model.Batch) -> bool:
    return bool(batch.attributes & CONTROL)


def survivors(sections: Sequence[Section], *, reaches_log_start: bool, now_ms: int) -> set[int]:
    """Return the surviving offsets with unlimited memory; sections are in log order."""
    log = [batch for section in sections for batch in section.batches]
    newest = {
        record.key: record.offset
        for batch in log
        for record in batch.records
        if not is_control(batch) and record.key is not None
    }
    kept = set()
    for batch in log:
        expired = reaches_log_start and batch.attributes & HORIZON and batch.base_timestamp <= now_ms
        for record in batch.records:
            is_newest = record.key is not None and newest.get(record.key) == record.offset
            if is_control(batch) or (is_newest and not (expired and record.value is None)):
                kept.add(record.offset)
    return kept


def filtered(
    batches: Sequence[model.Batch], kept: set[int], *, leader_epoch: int, horizon: int | None
) -> list[model.Batch]:
    """Return the batches that Kafka's filter would write."""
    result = []
    for batch in batches:
        records = tuple(record for record in batch.records if record.offset in kept)
        if not records:
            continue
        filtered_batch = replace(batch, leader_epoch=leader_epoch)
        if len(records) < len(batch.records):
            filtered_batch = with_records(filtered_batch, records)
        has_tombstones = any(record.value is None for record in records)
        if has_tombstones and horizon is not None and not batch.attributes & (HORIZON | CONTROL):
            filtered_batch = with_records(filtered_batch, records)
            filtered_batch = replace(
                filtered_batch, base_timestamp=horizon, attributes=batch.attributes | HORIZON
            )
        result.append(filtered_batch)
    return result


def min_timestamp(written: Sequence[model.Batch], sources: Sequence[model.Batch]) -> int | None:
    """Return the minimum timestamp of batches that pass 2 wrote: exact, except for unchanged batches.

    The headers of these have the timestamp of the first record, or only the maximum.
    """
    unchanged = {replace(batch, leader_epoch=0) for batch in sources}
    lowest = []
    for batch in written:
        if replace(batch, leader_epoch=0) not in unchanged:
            lowest.append(min(record.timestamp for record in batch.records))
        elif batch.attributes & (LOG_APPEND_TIME | HORIZON):
            lowest.append(batch.max_timestamp)
        else:
            lowest.append(min(batch.base_timestamp, batch.max_timestamp))
    return min(lowest, default=None)


def with_records(batch: model.Batch, records: tuple[Record, ...]) -> model.Batch:
    if batch.attributes & LOG_APPEND_TIME:
        return replace(batch, records=records)
    return replace(batch, records=records, max_timestamp=max(record.timestamp for record in records))


def merged(batches: Sequence[model.Batch], codec: Codec | None) -> list[model.Batch]:
    """Merge adjacent small batches, after filtering, where that is allowed."""
    runs: list[list[model.Batch]] = []
    for batch in batches:
        if runs and may_merge(runs[-1][0], batch):
            runs[-1].append(batch)
        else:
            runs.append([batch])
    return [run[0] if len(run) == 1 else merge(run, codec) for run in runs]


def may_merge(first: model.Batch, second: model.Batch) -> bool:
    if first.attributes != second.attributes or first.attributes & (CONTROL | TRANSACTIONAL):
        return False
    if first.attributes & HORIZON and first.base_timestamp != second.base_timestamp:
        return False
    if first.attributes & LOG_APPEND_TIME and first.max_timestamp != second.max_timestamp:
        return False
    return second.next_offset - 1 - first.base_offset < 2**31


def merge(run: Sequence[model.Batch], codec: Codec | None) -> model.Batch:
    first, last = run[0], run[-1]
    own = Codec(first.attributes & 7)
    return replace(
        first,
        records=tuple(record for batch in run for record in batch.records),
        last_offset_delta=last.next_offset - 1 - first.base_offset,
        attributes=first.attributes - own + (own if codec is None else codec),
        max_timestamp=max(record.timestamp for batch in run for record in batch.records),
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )
