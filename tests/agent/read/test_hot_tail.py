"""The tail in memory: the log's own batches at their offsets, the newest of them, within its bound."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from agent.read.hot_tail import BATCH_OVERHEAD, HotTail
from agent.write.ingestion_buffer import OpenFile, Piece
from agent.write.ingestion_file import SealedFile, seal
from agent.write.pending_append import PendingAppend
from catalog.model import PartitionId, RunRefusal, RunResult, SectionResult
from object_format.record_batch.headers import iter_headers
from tests.agent.write.test_write_path import batches, make_topic

if TYPE_CHECKING:
    from agent.read.hot_tail import TailRead

pytestmark = pytest.mark.anyio

TOPIC = make_topic(1)
PLACE = PartitionId(TOPIC.topic_id, 0)
SIZE = len(batches(TOPIC, 0, "x").data)


def _file(number: int, *values: str, producer: int = -1) -> SealedFile:
    validated = batches(TOPIC, 0, *values, producer=producer)
    file = OpenFile()
    pending = PendingAppend(len(values))
    file.add(
        TOPIC.topic_id,
        0,
        Piece(data=validated.data, batches=validated.batches, pending=pending, first_batch=0),
    )
    return seal(file, file_id=UUID(int=number), session_id=UUID(int=9), created_ms=1)


def _result(*runs: RunResult) -> list[SectionResult]:
    return [
        SectionResult(
            topic_id=TOPIC.topic_id,
            partition=0,
            log_start_offset=0,
            high_watermark=100,
            leader_epoch=7,
            runs=runs,
        )
    ]


def _offsets(read: TailRead | None) -> list[int]:
    assert read is not None
    return [header.base_offset for view in read.batches for _, header in iter_headers(view)]


async def test_batches_stand_at_their_real_offsets_and_epoch() -> None:
    """The offsets that the commit gave, in the producer's own bytes: nothing was copied."""
    tail = HotTail(2**20)
    file = _file(1, "a", "b", "c")
    tail.committed(file, _result(RunResult(base_offset=40)))
    read = tail.read(PLACE, 41, 2**20)
    assert read is not None
    assert (_offsets(read), read.next_offset, read.size) == ([41, 42], 43, 2 * SIZE)
    assert {header.partition_leader_epoch for view in read.batches for _, header in iter_headers(view)} == {7}
    owner = file.sections[0].pieces[0].data.obj
    assert all(view.obj is owner and view.readonly for view in read.batches)


async def test_what_the_catalog_refused_or_knew_already_is_not_there() -> None:
    tail = HotTail(2**20)
    tail.committed(
        _file(1, "a", "b", "c", "d", producer=5),
        _result(
            RunResult(base_offset=3, duplicate=True),
            RunResult(base_offset=10),
            RunResult(refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE),
            RunResult(base_offset=11),
        ),
    )
    assert tail.read(PLACE, 3, 2**20) is None
    assert _offsets(tail.read(PLACE, 10, 2**20)) == [10, 11]
    assert tail.read(PLACE, 12, 2**20) is None


async def test_a_read_ends_where_another_agents_commit_lies() -> None:
    tail = HotTail(2**20)
    tail.committed(_file(1, "a", "b"), _result(RunResult(base_offset=0)))
    tail.committed(_file(2, "c"), _result(RunResult(base_offset=5)))
    assert _offsets(tail.read(PLACE, 0, 2**20)) == [0, 1]
    assert tail.read(PLACE, 2, 2**20) is None
    assert _offsets(tail.read(PLACE, 5, 2**20)) == [5]


async def test_a_read_keeps_to_its_limit_but_has_one_batch_at_least() -> None:
    tail = HotTail(2**20)
    tail.committed(_file(1, "a", "b", "c"), _result(RunResult(base_offset=0)))
    assert _offsets(tail.read(PLACE, 0, 1)) == [0]
    assert _offsets(tail.read(PLACE, 0, 2 * SIZE)) == [0, 1]
    assert _offsets(tail.read(PLACE, 0, 3 * SIZE - 1)) == [0, 1]


async def test_a_read_of_one_file_ends_with_it() -> None:
    tail = HotTail(2**20)
    tail.committed(_file(1, "a", "b"), _result(RunResult(base_offset=0)))
    tail.committed(_file(2, "c"), _result(RunResult(base_offset=2)))
    assert _offsets(tail.read(PLACE, 0, 2**20)) == [0, 1, 2]
    assert _offsets(tail.read(PLACE, 0, 2**20, file_id=UUID(int=1))) == [0, 1]
    assert tail.read(PLACE, 0, 2**20, file_id=UUID(int=2)) is None


async def test_the_oldest_files_go_first_and_the_bound_holds() -> None:
    """Thousands of files later exactly the newest that fit are there."""
    room = 10
    tail = HotTail(room * (SIZE + BATCH_OVERHEAD) + 1)
    for number in range(3000):
        tail.committed(_file(number, "x"), _result(RunResult(base_offset=number)))
        assert tail.size <= tail.limit
    assert tail.size == room * (SIZE + BATCH_OVERHEAD)
    assert tail.read(PLACE, 2989, 1) is None
    assert _offsets(tail.read(PLACE, 2990, 2**20)) == list(range(2990, 3000))


async def test_a_tail_without_room_keeps_nothing() -> None:
    tail = HotTail(0)
    tail.committed(_file(1, "a"), _result(RunResult(base_offset=0)))
    assert (tail.size, tail.read(PLACE, 0, 1)) == (0, None)
