"""Lookups by time find the same record as a scan of all records."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.read import timestamp_lookup
from agent.read.timestamp_lookup import TimedOffset, TimestampLookup
from catalog.model import Extent, FileKind
from object_format.segment_file import SectionIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agent.read.caches.range_cache import ByteRange
    from agent.read.object_reader import RangeRequest
    from agent.runtime.byte_budget import ByteBudget
    from catalog.model import Topic

_TOPIC = UUID(int=1)
_BLOCK_BYTES = 100


@dataclass(frozen=True, slots=True)
class _Section:
    """Timestamps of records by block. A section with `holes` begins with as many offsets without a record."""

    blocks: tuple[tuple[int, ...], ...]
    has_index: bool
    holes: int


@dataclass
class _Log:
    """Extents whose blocks have 100 bytes each, in place of the catalog and of the store."""

    extents: list[Extent] = field(default_factory=list)
    records: dict[int, list[list[TimedOffset]]] = field(default_factory=dict)
    is_indexed: dict[int, bool] = field(default_factory=dict)
    wanted_timestamp: int = 0

    def append(self, section: _Section) -> None:
        base = self.extents[-1].last_offset + 1 if self.extents else 0
        blocks, offset = [], base + section.holes
        for times in section.blocks:
            blocks.append([TimedOffset(offset + number, time) for number, time in enumerate(times)])
            offset += len(times)
        every = [time for times in section.blocks for time in times]
        self.records[base], self.is_indexed[base] = blocks, section.has_index
        self.extents.append(
            Extent(
                topic_id=_TOPIC,
                partition=0,
                base_offset=base,
                last_offset=max(offset - 1, base),
                record_count=len(every),
                min_timestamp=min(every, default=0),
                max_timestamp=max(every, default=99),
                file_id=UUID(int=9),
                object_name=str(base),
                file_kind=FileKind.COMPACTED,
                position=1_000,
                length=_BLOCK_BYTES * len(blocks),
                index_position=0,
                index_length=0,
                offset_shift=0,
                leader_epoch=0,
                unique_keys=False,
                committed_ms=0,
            )
        )

    def first_at_or_after_timestamp(self, _topic_id: UUID, _partition: int, timestamp: int) -> Extent | None:
        found = (each for each in self.extents if each.record_count and each.max_timestamp >= timestamp)
        return next(found, None)

    def latest_timestamp(self, _topic_id: UUID, _partition: int, *, from_offset: int | None = None) -> int:
        first = 0 if from_offset is None else from_offset
        found = [each for each in self.extents if each.record_count and each.base_offset >= first]
        return max((each.max_timestamp for each in found), default=-1)

    def from_offset(
        self, _topic_id: UUID, _partition: int, offset: int, *, max_extents: int, max_bytes: int
    ) -> list[Extent]:
        assert max_bytes > 1 << 40
        return [each for each in self.extents if each.last_offset >= offset][:max_extents]

    async def read(self, requests: Sequence[RangeRequest]) -> list[memoryview]:
        latest = {each.object_name: each.max_timestamp for each in self.extents if each.record_count}
        for request in requests:
            assert request.range.length > 0
            assert latest[request.range.object_name] >= self.wanted_timestamp
        return [memoryview(b"")] * len(requests)

    async def index(self, extent: Extent) -> SectionIndex | None:
        if not self.is_indexed[extent.base_offset]:
            return None
        blocks = self.records[extent.base_offset]
        return SectionIndex(
            np.array([block[0].offset for block in blocks]),
            np.array([max(each.timestamp for each in block) for block in blocks]),
            np.arange(len(blocks) + 1) * _BLOCK_BYTES,
        )

    def first_record(
        self, extent: Extent, part: ByteRange, _data: object, timestamp: int, log_start_offset: int
    ) -> TimedOffset | None:
        return _scan(self._records_in(extent, part), timestamp, log_start_offset)

    def largest_record(
        self, extent: Extent, part: ByteRange, _data: object, log_start_offset: int
    ) -> TimedOffset | None:
        return _scan_for_largest(self._records_in(extent, part), log_start_offset)

    def _records_in(self, extent: Extent, part: ByteRange) -> list[TimedOffset]:
        first = (part.position - extent.position) // _BLOCK_BYTES
        blocks = self.records[extent.base_offset][first : first + part.length // _BLOCK_BYTES]
        return [each for block in blocks for each in block]

    def all_records(self) -> list[TimedOffset]:
        return [each for blocks in self.records.values() for block in blocks for each in block]


def _scan(records: Sequence[TimedOffset], timestamp: int, log_start_offset: int) -> TimedOffset | None:
    found = (each for each in records if each.offset >= log_start_offset and each.timestamp >= timestamp)
    return next(found, None)


def _scan_for_largest(records: Sequence[TimedOffset], log_start_offset: int) -> TimedOffset | None:
    remaining = [each for each in records if each.offset >= log_start_offset]
    return max(remaining, key=lambda each: each.timestamp, default=None)  # the first of several


class _Pool:
    async def run(self, work: Callable[[], object]) -> object:
        return work()


class _NoTailCache:
    async def offset_in_extent(self, *_: object) -> None:
        return None


_TOPIC_T = cast("Topic", SimpleNamespace(topic_id=_TOPIC, name="t"))
_BUDGET = cast("ByteBudget", SimpleNamespace(reserving=nullcontext))


@contextmanager
def _looking_up(log: _Log, fetch_bytes: int) -> Iterator[TimestampLookup]:
    """Yield a lookup in `log`. Extents are looked up two at a time."""
    pools = SimpleNamespace(lookups=_Pool(), rendering=_Pool())
    settings = SimpleNamespace(max_fetch_extents=2, default_fetch_bytes=fetch_bytes)
    lookup = TimestampLookup(
        log, cast("Any", log), cast("Any", pools), cast("Any", settings), cast("Any", _NoTailCache())
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timestamp_lookup, "_first_record", log.first_record)
        patch.setattr(timestamp_lookup, "_largest_record", log.largest_record)
        patch.setattr(lookup, "_index", log.index)
        yield lookup


_TIMES = st.sampled_from([*[0] * 8, 5, 9])
_BLOCKS = st.lists(st.lists(_TIMES, min_size=1, max_size=3).map(tuple), max_size=5).map(tuple)


@given(
    st.lists(
        st.builds(_Section, _BLOCKS, st.booleans(), st.sampled_from([0, 0, 2])), min_size=4, max_size=10
    ),
    st.sampled_from([0, 5, 6, 9, 9, 10]),
    st.integers(0, 20),
    st.sampled_from([0, 0, 100, 250]),
)
@example([_Section(((9, 0), (0,), (9,)), has_index=True, holes=0)], 9, 1, 0)
def test_a_lookup_finds_the_first_late_record_behind_the_log_start(
    sections: list[_Section], timestamp: int, log_start_offset: int, fetch_bytes: int
) -> None:
    """Extents without late records are not read, and extents are looked up two at a time."""
    log = _Log(wanted_timestamp=timestamp)
    for section in sections:
        log.append(section)
    with _looking_up(log, fetch_bytes) as lookup:
        found = asyncio.run(
            lookup.find(_TOPIC_T, 0, timestamp, log_start_offset=log_start_offset, budget=_BUDGET)
        )
    assert found == _scan(log.all_records(), timestamp, log_start_offset)


@given(
    st.lists(st.builds(_Section, _BLOCKS, st.booleans(), st.sampled_from([0, 0, 2])), min_size=1, max_size=5),
    st.integers(0, 20),
    st.sampled_from([0, 0, 100, 250]),
)
@example([_Section(((9, 0), (5,), (6, 6)), has_index=True, holes=0)], 1, 0)
@example([_Section(((9, 6), (5,)), has_index=False, holes=0), _Section(((6,),), True, 0)], 1, 0)
def test_the_largest_timestamp_is_that_of_a_scan_behind_the_log_start(
    sections: list[_Section], log_start_offset: int, fetch_bytes: int
) -> None:
    """The extent of the log start offset has records before it, which may be the latest."""
    log = _Log()
    for section in sections:
        log.append(section)
    with _looking_up(log, fetch_bytes) as lookup:
        found = asyncio.run(
            lookup.find_largest(_TOPIC_T, 0, log_start_offset=log_start_offset, budget=_BUDGET)
        )
    assert found == _scan_for_largest(log.all_records(), log_start_offset)
