"""The plan of pass 2 for invented headers, compared with a plain model of its rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from object_format.codecs.codec import Codec
from object_format.kernels.batches.layout import BATCH_OVERHEAD, BATCH_ROW
from object_format.kernels.dedupe.filter import (
    CONTINUES,
    COPY,
    FILTER,
    MAX_GROWTH,
    MERGED,
    SET_HORIZON,
    SKIP,
    plan_rows,
)
from object_format.kernels.dedupe.merge import (
    SMALL_BYTES,
    SMALL_COMPRESSED_BYTES,
    mark_small_batches,
    plan_merges,
)
from tests.object_format.model_log import CONTROL, HORIZON, LOG_APPEND_TIME, TRANSACTIONAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from object_format.record_batch.headers import BatchRows

MASK = 3


@dataclass(frozen=True, kw_only=True)
class Header:
    """Header of a batch, with distances to the batch before it, and what pass 1 found."""

    gap: int
    span: int
    records: int
    size: int
    records_size: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    survivors: frozenset[int]  # offset deltas
    tombstones: frozenset[int]


@dataclass
class Batch:
    """A batch at absolute offsets, and its planned action."""

    header: Header
    base: int
    kept: int = 0
    action: int = SKIP

    @property
    def last(self) -> int:
        return self.base + self.header.span - 1

    def final(self, horizon: int) -> tuple[int, int]:
        """Return attributes and base timestamp after the action."""
        if self.action & MASK == SET_HORIZON:
            return self.header.attributes | HORIZON, horizon
        return self.header.attributes, self.header.base_timestamp

    def part(self, amount: int) -> int:
        """Return the part of an amount that belongs to the survivors."""
        return int(amount * self.kept / self.header.records)


@st.composite
def headers(draw: st.DrawFn) -> Header:
    span = draw(st.integers(1, 5))
    records = draw(st.integers(1, span))
    surviving = (
        draw(st.frozensets(st.integers(0, records - 1))) if draw(st.booleans()) else frozenset(range(records))
    )
    return Header(
        gap=draw(st.sampled_from([0, 0, 0, 2])),
        span=span,
        records=records,
        size=BATCH_OVERHEAD
        + records
        * draw(st.sampled_from([1, 20, SMALL_BYTES - 62, SMALL_BYTES - 61, SMALL_BYTES, 16_322, 16_323])),
        records_size=draw(st.integers(1, 60)),
        attributes=draw(
            st.sampled_from(
                [0, 0, 0, 0, Codec.ZSTD, Codec.ZSTD, CONTROL, TRANSACTIONAL, HORIZON, LOG_APPEND_TIME]
            )
        ),
        base_timestamp=draw(st.sampled_from([7, 7, 8])),
        max_timestamp=draw(st.sampled_from([9, 9, 10])),
        survivors=surviving,
        tombstones=draw(st.frozensets(st.sampled_from(sorted(surviving)))) if surviving else frozenset(),
    )


def placed(chosen: Sequence[Header]) -> list[Batch]:
    batches: list[Batch] = []
    for header in chosen:
        end = batches[-1].last + 1 if batches else 100
        batches.append(Batch(header, end + header.gap))
    return batches


def rows_of(batches: Sequence[Batch], shift: int) -> BatchRows:
    rows = np.zeros(len(batches), BATCH_ROW)
    for row, batch in zip(rows, batches, strict=True):
        header = batch.header
        row["base_offset"], row["last_offset_delta"] = batch.base - shift, header.span - 1
        row["attributes"], row["record_count"], row["size"] = header.attributes, header.records, header.size
        row["base_timestamp"], row["max_timestamp"] = header.base_timestamp, header.max_timestamp
        row["records_start"], row["records_end"] = 1000, 1000 + header.records_size
    return rows


def offsets(batches: Sequence[Batch], *, of_tombstones: bool) -> npt.NDArray[np.int64]:
    found = [
        batch.base + delta
        for batch in batches
        for delta in sorted(batch.header.tombstones if of_tombstones else batch.header.survivors)
    ]
    return np.array(found, np.int64)


def choose_actions(batches: Sequence[Batch], *, set_horizon: bool) -> None:
    for batch in batches:
        header = batch.header
        batch.kept = len(header.survivors)
        if not batch.kept:
            batch.action = SKIP
        elif set_horizon and header.tombstones and not header.attributes & (HORIZON | CONTROL):
            batch.action = SET_HORIZON
        else:
            batch.action = COPY if batch.kept == header.records else FILTER


def may_merge(first: Batch, second: Batch, horizon: int) -> bool:
    (attributes, time), (other_attributes, other_time) = first.final(horizon), second.final(horizon)
    return (
        attributes == other_attributes
        and (time == other_time or not attributes & HORIZON)
        and (first.header.max_timestamp == second.header.max_timestamp or not attributes & LOG_APPEND_TIME)
    )


def mark_small(batches: Sequence[Batch], horizon: int) -> None:
    """Mark small batches whose neighbour is small, too."""
    last: Batch | None = None
    for batch in (each for each in batches if each.action != SKIP):
        header = batch.header
        limit = SMALL_COMPRESSED_BYTES if header.attributes & 7 else SMALL_BYTES
        is_small = BATCH_OVERHEAD + batch.part(header.size - BATCH_OVERHEAD) < limit
        if not is_small or header.attributes & (CONTROL | TRANSACTIONAL):
            last = None
            continue
        if last is not None and may_merge(last, batch, horizon):
            last.action |= MERGED
            batch.action |= MERGED
        last = batch


def needed_bytes(batch: Batch) -> int:
    """Return the bytes that a batch may need in the uncompressed result."""
    header = batch.header
    if batch.action in {SKIP, COPY}:
        return header.size if batch.action == COPY else 0
    needed = BATCH_OVERHEAD + header.records_size
    if batch.action != FILTER:
        needed += MAX_GROWTH * batch.kept
    return max(needed, header.size) if batch.action & MASK == COPY else needed


def merge_groups(batches: Sequence[Batch], horizon: int, limits: tuple[int, int]) -> None:
    """Let marked batches continue the one before them while their records fit."""
    groups: list[list[Batch]] = []
    for batch in (each for each in batches if each.action != SKIP):
        last = groups[-1] if groups else []
        limit = limits[1] if batch.header.attributes & 7 else limits[0]
        size = sum(each.part(each.header.records_size) for each in [*last, batch])
        marked = bool(last) and bool(last[0].action & batch.action & MERGED)
        if marked and size <= limit and may_merge(last[0], batch, horizon):
            last.append(batch)
        else:
            groups.append([batch])
    for lead, *members in groups:
        if not members:
            lead.action &= MASK
        for each in members:
            each.action |= CONTINUES


HORIZONS = st.sampled_from([None, 7, 8, 50])


@settings(max_examples=200)
@given(
    st.lists(headers(), max_size=9),
    HORIZONS,
    st.sampled_from([0, 60]),
    st.integers(1, 200),
    st.integers(1, 200),
)
def test_a_plan_follows_the_rules(
    chosen: list[Header], horizon: int | None, shift: int, max_bytes: int, max_compressed_bytes: int
) -> None:
    """Each step is compared: actions, marks of small batches, and groups with the memory that they need."""
    batches = placed(chosen)
    rows = rows_of(batches, shift)
    actions, starts = np.empty(rows.size, np.uint8), np.empty(rows.size + 1, np.int64)
    kept, tombstones = (offsets(batches, of_tombstones=each) for each in (False, True))
    set_horizon, time = horizon is not None, horizon or 0

    assert plan_rows(rows, shift, kept, tombstones, set_horizon, actions, starts) == -1
    choose_actions(batches, set_horizon=set_horizon)
    assert actions.tolist() == [each.action for each in batches]
    assert starts.tolist() == [sum(each.kept for each in batches[:end]) for end in range(rows.size + 1)]

    mark_small_batches(rows, actions, starts, time)
    mark_small(batches, time)
    assert actions.tolist() == [each.action for each in batches]

    needed = sum(map(needed_bytes, batches))
    opened = sum(each.action not in {SKIP, COPY} for each in batches)
    planned = plan_merges(rows, actions, starts, time, max_bytes, max_compressed_bytes)
    merge_groups(batches, time, (max_bytes, max_compressed_bytes))
    assert actions.tolist() == [each.action for each in batches]
    assert planned == (needed, opened)


@given(st.lists(headers(), min_size=1, max_size=5), st.data())
def test_a_batch_with_more_survivors_than_records_is_named(chosen: list[Header], data: st.DataObject) -> None:
    batches = placed(chosen)
    number = data.draw(st.integers(0, len(batches) - 1))
    batch = batches[number]
    rows = rows_of(batches, 0)
    rows["record_count"] = 5
    rows["record_count"][number] = data.draw(st.integers(0, batch.header.span - 1))
    everything = {*range(batch.base, batch.last + 1), *offsets(batches, of_tombstones=False).tolist()}
    kept = np.array(sorted(everything), np.int64)
    actions, starts = np.empty(rows.size, np.uint8), np.empty(rows.size + 1, np.int64)
    assert plan_rows(rows, 0, kept, kept[:0], False, actions, starts) == number
