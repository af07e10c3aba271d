"""A model of cleaning, batch by batch and record by record, after Kafka's Cleaner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tests.object_format import model_log
from tests.object_format.model_log import CONTROL, HORIZON, LOG_APPEND_TIME, TRANSACTIONAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from object_format.record_batch.records import Record
    from tests.object_format.model import Batch

ABORT_KEY = b"\x00\x00\x00\x00"
COMMIT_KEY = b"\x00\x00\x00\x01"


class Last(NamedTuple):
    last_data_offset: int | None
    producer_epoch: int


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """One cleaning of [first_dirty, end). The uncleanable part begins at `upper`."""

    first_dirty: int
    end: int
    upper: int
    now_ms: int
    retention_ms: int
    last: Mapping[int, Last]


def is_control(batch: Batch) -> bool:
    return bool(batch.attributes & CONTROL)


def is_abort(batch: Batch) -> bool:
    return is_control(batch) and bool(batch.records) and batch.records[0].key == ABORT_KEY


def aborted_batches(batches: Sequence[Batch]) -> set[int]:
    """Return the base offsets of the data batches of aborted transactions."""
    aborted: set[int] = set()
    open_batches: dict[int, set[int]] = {}
    for batch in batches:
        if is_control(batch):
            seen = open_batches.pop(batch.producer_id, set())
            if is_abort(batch):
                aborted |= seen
        elif batch.attributes & TRANSACTIONAL:
            open_batches.setdefault(batch.producer_id, set()).add(batch.base_offset)
    return aborted


def clean(batches: Sequence[Batch], cleaning: Cleaning) -> list[Batch]:
    """Return the batches that are retained."""
    aborted = aborted_batches(batches)
    latest = {
        record.key: record.offset
        for batch in batches
        if not is_control(batch) and batch.base_offset not in aborted
        for record in batch.records
        if record.key is not None and cleaning.first_dirty <= record.offset < cleaning.end
    }
    left: list[Batch] = []
    seen: set[int] = set()
    for batch in batches:
        if is_control(batch):
            retained = _marker(batch, batch.producer_id in seen, cleaning)
            seen.discard(batch.producer_id)
        else:
            if batch.attributes & TRANSACTIONAL:
                seen.add(batch.producer_id)
            retained = None if batch.base_offset in aborted else _data(batch, latest, cleaning)
        if retained is None and _must_stay(batch, cleaning):
            retained = _empty(batch)
        if retained is not None:
            left.append(retained)
    return left


def _marker(batch: Batch, has_batches: bool, cleaning: Cleaning) -> Batch | None:
    if not batch.records:
        return None
    if has_batches:
        return batch
    if not batch.attributes & HORIZON:
        return replace(
            batch,
            attributes=batch.attributes | HORIZON,
            base_timestamp=cleaning.now_ms + cleaning.retention_ms,
        )
    return None if batch.base_timestamp <= cleaning.now_ms else batch


def _data(batch: Batch, latest: Mapping[bytes, int], cleaning: Cleaning) -> Batch | None:
    if batch.base_offset >= cleaning.end:
        return batch
    has_horizon = bool(batch.attributes & HORIZON)
    passed = has_horizon and batch.base_timestamp <= cleaning.now_ms

    def stays(record: Record) -> bool:
        newest = record.key is not None and record.offset >= latest.get(record.key, -1)
        return newest and not (record.value is None and passed)

    records = tuple(record for record in batch.records if stays(record))
    if not records:
        return None
    retained = batch if len(records) == len(batch.records) else model_log.with_records(batch, records)
    if not has_horizon and any(record.value is None for record in records):
        retained = replace(
            model_log.with_records(retained, records),
            base_timestamp=cleaning.now_ms + cleaning.retention_ms,
            attributes=batch.attributes | HORIZON,
        )
    return retained


def _must_stay(batch: Batch, cleaning: Cleaning) -> bool:
    if batch.next_offset == cleaning.upper:
        return True
    last = cleaning.last.get(batch.producer_id) if batch.producer_id >= 0 else None
    if last is None:
        return False
    if last.last_data_offset is not None:
        return batch.next_offset - 1 == last.last_data_offset
    return is_control(batch) and batch.producer_epoch == last.producer_epoch


def _empty(batch: Batch) -> Batch:
    return replace(
        batch,
        records=(),
        attributes=batch.attributes & (TRANSACTIONAL | CONTROL | LOG_APPEND_TIME),
        base_timestamp=-1,
    )
