"""The tail in memory: batches of the log at their offsets, within a size limit."""

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
PARTITION = PartitionId(TOPIC.topic_id, 0)
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


async def test_batches_have_their_final_offsets_and_epoch() -> None:
    """They are in the producer's own bytes: nothing was copied."""
    tail = HotTail(2**20)
    file = _file(1, "a", "b", "c")
    tail.committed(file, _result(RunResult(base_offset=40)))
    read = tail.read(PARTITION, 41, 2**20)
    assert read is not None
    assert (_offsets(read), read.next_offset, read.size) == ([41, 42], 43, 2 * SIZE)
    assert {header.partition_leader_epoch for view in read.batches for _, header in iter_headers(view)} == {7}
    owner = file.sections[0].pieces[0].data.obj
    assert all(view.obj is owner and view.readonly for view in read.batches)


async def test_rejected_and_duplicate_batches_are_not_in_the_tail() -> None:
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
    assert tail.read(PARTITION, 3, 2**20) is None
    assert _offsets(tail.read(PARTITION, 10, 2**20)) == [10, 11]
    assert tail.read(PARTITION, 12, 2**20) is None


async def test_a_read_ends_before_the_commit_of_another_agent() -> None:
    tail = HotTail(2**20)
    tail.committed(_file(1, "a", "b"), _result(RunResult(base_offset=0)))
    tail.committed(_file(2, "c"), _result(RunResult(base_offset=5)))
    assert _offsets(tail.read(PARTITION, 0, 2**20)) == [0, 1]
    assert tail.read(PARTITION, 2, 2**20) is None
    assert _offsets(tail.read(PARTITION, 5, 2**20)) == [5]


async def test_a_read_keeps_its_limit_but_returns_at_least_one_batch() -> None:
    tail = HotTail(2**20)
    tail.committed(_file(1, "a", "b", "c"), _result(RunResult(base_offset=0)))
    assert _offsets(tail.read(PARTITION, 0, 1)) == [0]
    assert _offsets(tail.read(PARTITION, 0, 2 * SIZE)) == [0, 1]
    assert _offsets(tail.read(PARTITION, 0, 3 * SIZE - 1)) == [0, 1]


async def test_a_read_of_one_file_ends_with_it() -> None:
    tail = HotTail(2**20)
    tail.committed(_file(1, "a", "b"), _result(RunResult(base_offset=0)))
    tail.committed(_file(2, "c"), _result(RunResult(base_offset=2)))
    assert _offsets(tail.read(PARTITION, 0, 2**20)) == [0, 1, 2]
    assert _offsets(tail.read(PARTITION, 0, 2**20, file_id=UUID(int=1))) == [0, 1]
    assert tail.read(PARTITION, 0, 2**20, file_id=UUID(int=2)) is None


async def test_a_read_of_one_extent_ends_with_it() -> None:
    tail = HotTail(2**20)
    tail.committed(_file(1, "a", "b", "c"), _result(RunResult(base_offset=0)))
    for last in range(3):
        found = tail.read(PARTITION, 0, 2**20, file_id=UUID(int=1), last_offset=last)
        assert _offsets(found) == list(range(last + 1))


async def test_the_oldest_files_are_evicted_to_keep_the_limit() -> None:
    """After thousands of files, exactly the newest that fit are in the tail."""
    count = 10
    tail = HotTail(count * (SIZE + BATCH_OVERHEAD) + 1)
    for number in range(3000):
        tail.committed(_file(number, "x"), _result(RunResult(base_offset=number)))
        assert tail.size <= tail.limit
    assert tail.size == count * (SIZE + BATCH_OVERHEAD)
    assert tail.read(PARTITION, 2989, 1) is None
    assert _offsets(tail.read(PARTITION, 2990, 2**20)) == list(range(2990, 3000))


async def test_a_tail_of_size_zero_stores_nothing() -> None:
    tail = HotTail(0)
    tail.committed(_file(1, "a"), _result(RunResult(base_offset=0)))
    assert (tail.size, tail.read(PARTITION, 0, 1)) == (0, None)


async def test_a_small_batch_does_not_keep_its_large_request_in_memory() -> None:
    """The catalog has rejected most of the request's batches; the tail copies the rest."""
    file = _file(1, "a", "b", "c", "d", producer=5)
    tail = HotTail(2**20)
    refused = RunResult(refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE)
    tail.committed(file, _result(RunResult(base_offset=3), refused, refused, refused))
    read = tail.read(PARTITION, 3, 2**20)
    owner = file.sections[0].pieces[0].data.obj
    assert read is not None
    assert [view.obj is owner for view in read.batches] == [False]
    assert _offsets(read) == [3]
    assert tail.size == SIZE + BATCH_OVERHEAD


async def test_a_request_of_which_the_tail_keeps_most_counts_as_a_whole() -> None:
    file = _file(1, "a", "b", "c", "d", producer=5)
    tail = HotTail(2**20)
    refused = RunResult(refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE)
    tail.committed(
        file, _result(RunResult(base_offset=3), RunResult(base_offset=4), RunResult(base_offset=5), refused)
    )
    assert tail.size == len(memoryview(file.sections[0].pieces[0].data.obj)) + 3 * BATCH_OVERHEAD


async def test_a_control_batch_joins_the_batches_before_and_after_it() -> None:
    """It is evicted like a file. Without the batch directly before it, it is not added."""
    tail = HotTail(2**20)
    control = memoryview(bytes(78))
    tail.append(PARTITION, 0, control)
    tail.committed(_file(1, "a"), _result(RunResult(base_offset=40)))
    tail.append(PARTITION, 42, control)
    assert tail.size == SIZE + BATCH_OVERHEAD
    tail.append(PARTITION, 41, control)
    tail.committed(_file(2, "b"), _result(RunResult(base_offset=42)))
    read = tail.read(PARTITION, 40, 2**20)
    assert read is not None
    assert (len(read.batches), read.size, read.next_offset) == (3, 2 * SIZE + 78, 43)
    for _ in range(3):
        tail._drop_oldest()
    assert (tail.size, tail.read(PARTITION, 42, 2**20)) == (0, None)
