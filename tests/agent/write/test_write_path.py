"""The write path over a real local store and a log in memory, both with faults on demand."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import numpy as np
import pytest

from agent.cluster.catalog_epoch import CatalogEpoch
from agent.cluster.errors import AppendFailedError
from agent.runtime.errors import BusyError, StoppingError
from agent.runtime.health import CallHealth
from agent.runtime.metrics import AgentMetrics
from agent.runtime.pools import Pools
from agent.runtime.retry import RetryPolicy
from agent.runtime.work_pool import WorkPool
from agent.write.failed_producers import FailedProducers
from agent.write.pending_append import AppendResult, PendingAppend
from agent.write.validation import ValidatedAppend, validate
from agent.write.write_path import WritePath
from catalog.config.values import TopicConfig
from catalog.model import PartitionId, RunRefusal, Topic
from core.clock import SystemClock
from core.ids import SeededIds
from object_format.record_batch.records import encode_batch
from object_format.segment_file import ForwardReader, SegmentKind
from object_store.accounting import Purpose
from object_store.names import ingestion_name
from tests.agent.fake_log import FakeLog, FakeSession
from tests.agent.running_agents import SETTINGS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from agent.cluster.session import Session
    from agent.write.write_path import CommitLog
    from catalog.open import Catalog
    from tests.agent.faulty_store import FaultyStore

pytestmark = pytest.mark.anyio

SESSIONS = [UUID(int=number) for number in (101, 102)]


def make_topic(number: int, **config: str) -> Topic:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    return Topic(
        topic_id=UUID(int=number),
        name=f"topic-{number}",
        partition_count=8,
        config=TopicConfig.of(settings),
        created_ms=0,
    )


def batches(
    topic: Topic, partition: int, *values: str, producer: int = -1, sequence: int = 0
) -> ValidatedAppend:
    """Return one batch for each value."""
    data = b"".join(
        encode_batch(
            [1000 + index],
            [b"k"],
            [value.encode()],
            producer=(producer, 0, sequence + index) if producer >= 0 else (-1,) * 3,
        )
        for index, value in enumerate(values)
    )
    return validate(topic, partition, bytearray(data), now_ms=2000)


@dataclass
class Harness:
    path: WritePath
    log: FakeLog
    session: FakeSession


@asynccontextmanager
async def writing(store: FaultyStore, /, **changes: int) -> AsyncIterator[Harness]:
    log = FakeLog()
    try:
        async with writing_to(log, store, **changes) as (path, session):
            yield Harness(path, log, session)
    finally:
        log.gate.set()


@asynccontextmanager
async def writing_to(
    log: CommitLog, store: FaultyStore, **changes: int
) -> AsyncIterator[tuple[WritePath, FakeSession]]:
    clock = SystemClock()
    ids = SeededIds(7, clock)
    settings = replace(SETTINGS, **cast("Any", {"flush_interval_ms": 60_000, **changes}))
    pools = Pools.open(settings)
    session = FakeSession(*SESSIONS)
    path = WritePath(
        settings=settings,
        store=store,
        log=log,
        session=cast("Session", session),
        pools=pools,
        retry=RetryPolicy(attempts=settings.write_attempts, first_pause=0.001, max_pause=0.002, ids=ids),
        clock=clock,
        ids=ids,
        metrics=AgentMetrics(),
        epoch=CatalogEpoch(),
        failed_producers=FailedProducers(clock),
        store_health=CallHealth(clock, limit_seconds=10),
    )
    path.start()
    try:
        yield path, session
    finally:
        store.gate.set()
        await path.stop()
        await asyncio.to_thread(pools.close)


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks and threads run until `condition` holds."""
    while not condition():  # noqa: ASYNC110  # set by other threads
        await asyncio.sleep(0.001)


A, B = make_topic(1), make_topic(2)


async def test_one_file_holds_all_partitions_in_order_and_takes_one_put(store: FaultyStore) -> None:
    async with writing(store) as harness:
        pending = harness.path.enqueue(
            [batches(B, 1, "b1"), batches(A, 3, "a3"), batches(B, 0, "b0", "b0'"), batches(A, 3, "a3'")]
        )
        harness.path.flush()
        results = [await each.wait() for each in pending]

        assert [[result.base_offset for result in append] for append in results] == [[0], [0], [0, 1], [1]]
        (commit,) = harness.log.committed
        assert store.put_names == [commit.object_name] == [ingestion_name(SESSIONS[0], commit.file_id)]
        stream = store.open_stream(commit.object_name, purpose=Purpose.FETCH)
        reader = ForwardReader(stream, name=commit.object_name, size=commit.size)
        sections = []
        while section := reader.next_section():
            sections.append((section.topic_id, section.partition))
        stream.close()
        assert reader.header.kind is SegmentKind.INGESTION
        assert sections == [(A.topic_id, 3), (B.topic_id, 0), (B.topic_id, 1)]
        assert [(each.topic_id, each.partition) for each in commit.sections] == sections


async def test_the_flush_interval_closes_a_file(store: FaultyStore) -> None:
    async with writing(store, flush_interval_ms=1) as harness:
        (results,) = await harness.path.append([batches(A, 0, "x")])
        assert results[0].base_offset == 0


async def test_a_file_takes_one_call_of_a_thread_for_its_upload_and_one_for_its_commit(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call wakes a thread, and then the event loop: small files cost little else."""
    calls: list[str] = []
    run = WorkPool.run

    async def record(pool: WorkPool, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        calls.append(pool.name)
        return await run(pool, call)

    monkeypatch.setattr(WorkPool, "run", record)
    async with writing(store, flush_interval_ms=1) as harness:
        await harness.path.append([batches(A, 0, "x")])
        assert calls == ["uploads", "commits"]


async def test_a_full_file_does_not_wait_for_the_interval(store: FaultyStore) -> None:
    async with writing(store, flush_bytes=100) as harness:
        (results,) = await harness.path.append([batches(A, 0, "x" * 200)])
        assert results[0].base_offset == 0


async def test_a_file_is_closed_early_for_a_producer_about_to_stall(store: FaultyStore) -> None:
    """A producer's third pending request closes a file with enough of its bytes. Other files wait."""
    async with writing(store, stalled_flush_bytes=600, early_close_bytes=600) as harness:
        first = [harness.path.enqueue([batches(A, n, "x" * 300, producer=7)])[0] for n in range(2)]
        assert harness.path.files_in_flight == 0
        third = harness.path.enqueue([batches(A, 2, "x" * 300, producer=7)])[0]
        assert harness.path.files_in_flight == 1
        for pending in (*first, third):
            assert (await pending.wait())[0].base_offset == 0
        again = harness.path.enqueue([batches(A, 3, "x" * 500, producer=7)])
        assert harness.path.files_in_flight == 0, "acknowledged requests do not count"
        harness.path.flush()
        await again[0].wait()


async def test_a_file_that_is_due_at_once_takes_more_appends(store: FaultyStore) -> None:
    """Until the event loop runs the timer, each append compares its time with that of the file."""
    async with writing(store) as harness:
        harness.path._set_early_timer(0)
        pending = harness.path.enqueue([batches(A, 0, "x" * 70_000)])[0]
        assert (await pending.wait())[0].base_offset == 0


async def test_many_small_producers_do_not_make_small_files(store: FaultyStore) -> None:
    """Only the bytes of a single producer count, however many requests are pending."""
    async with writing(store, stalled_flush_bytes=2000, early_close_bytes=20_000) as harness:
        pending = [
            harness.path.enqueue([batches(A, n % 8, "x" * 50, producer=7 + n % 10)])[0] for n in range(60)
        ]
        assert harness.path.files_in_flight == 0
        harness.path.flush()
        for each in pending:
            await each.wait()
        assert len(store.put_names) == 1


async def test_a_large_append_is_divided_between_batches(store: FaultyStore) -> None:
    """Its batches go to several files, and its results have the order of the batches."""
    async with writing(store, flush_bytes=1000) as harness:
        pending = harness.path.enqueue([batches(A, 0, *(str(n) * 400 for n in range(10)))])
        harness.path.flush()
        results = await pending[0].wait()
        assert [result.base_offset for result in results] == list(range(10))
        assert len(harness.log.committed) == 4
        assert [sum(run.offset_count for run in each.sections[0].runs) for each in harness.log.committed] == [
            3,
            3,
            3,
            1,
        ]


async def test_files_upload_concurrently_and_commit_in_flush_order(store: FaultyStore) -> None:
    async with writing(store, flush_bytes=1, max_files_in_flight=3) as harness:
        store.gate.clear()
        pending = [harness.path.enqueue([batches(A, 0, f"v{number}")])[0] for number in range(5)]
        await until(lambda: store.puts_begun == 3)
        assert harness.log.committed == []
        store.gate.set()
        offsets = [(await each.wait())[0].base_offset for each in pending]
        assert offsets == [0, 1, 2, 3, 4]
        assert len(harness.log.committed) == 5


async def test_a_slow_store_makes_files_larger_and_not_more_numerous(store: FaultyStore) -> None:
    async with writing(store, max_files_in_flight=1) as harness:
        store.gate.clear()
        pending = harness.path.enqueue([batches(A, 0, "first")])
        harness.path.flush()
        await until(lambda: store.puts_begun == 1)
        for number in range(4):
            pending += harness.path.enqueue([batches(A, 0, f"v{number}")])
            harness.path.flush()
        store.gate.set()
        assert [(await each.wait())[0].base_offset for each in pending] == [0, 1, 2, 3, 4]
        assert len(harness.log.committed) == 2


async def test_an_incomplete_commit_result_fails_its_file_and_no_other(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with writing(store) as harness:
        commit = harness.log.commit
        monkeypatch.setattr(harness.log, "commit", lambda file: commit(file)[:1])
        pending = harness.path.enqueue([batches(A, 0, "a"), batches(B, 0, "b")])
        harness.path.flush()
        (a,), (b,) = [await each.wait() for each in pending]
        assert a.base_offset == 0
        assert b.error is not None
        assert "unknown whether" in b.error.message

        monkeypatch.setattr(harness.log, "commit", commit)
        (later,) = harness.path.enqueue([batches(A, 0, "a")])
        harness.path.flush()
        assert [result.base_offset for result in await later.wait()] == [1]


@pytest.mark.parametrize(("fault", "message"), [("store", "not committed"), ("log", "unknown whether")])
async def test_an_error_says_whether_the_records_may_be_committed(
    store: FaultyStore, fault: str, message: str
) -> None:
    async with writing(store, write_attempts=2) as harness:
        if fault == "store":
            store.fail_puts = 2
        else:
            harness.log.lose_responses = 2
        (pending,) = harness.path.enqueue([batches(A, 0, "a")])
        harness.path.flush()
        (result,) = await pending.wait()
        assert result.error is not None
        assert message in result.error.message


@pytest.mark.parametrize("fault", ["fail_puts", "lose_responses"])
async def test_a_failed_put_is_retried(store: FaultyStore, fault: str) -> None:
    async with writing(store) as harness:
        setattr(store, fault, 2)
        pending = harness.path.enqueue([batches(A, 0, "x")])
        harness.path.flush()
        assert (await pending[0].wait())[0].base_offset == 0
        assert len(set(store.put_names)) == 1
        assert len(harness.log.committed) == 1


@pytest.mark.parametrize("fault", ["fail", "lose_responses"])
async def test_a_failed_commit_is_retried_and_takes_effect_once(store: FaultyStore, fault: str) -> None:
    async with writing(store) as harness:
        setattr(harness.log, fault, 2)
        pending = harness.path.enqueue([batches(A, 0, "x")])
        harness.path.flush()
        assert (await pending[0].wait())[0].base_offset == 0
        assert len(harness.log.committed) == 1


async def test_a_lost_file_fails_only_its_own_appends(store: FaultyStore) -> None:
    async with writing(store, flush_bytes=1, max_files_in_flight=1, write_attempts=3) as harness:
        store.fail_puts = 3
        lost, kept = (harness.path.enqueue([batches(A, 0, value)])[0] for value in ("lost", "kept"))
        (failure,) = await lost.wait()
        (success,) = await kept.wait()
        assert isinstance(failure.error, AppendFailedError)
        assert failure.error.message.startswith("the records were not committed; ")
        assert (failure.appended, success.base_offset) == (False, 0)
        assert harness.path.budget.used == 0
        puts = harness.path._metrics.registry.get_sample_value("siltstone_ingestion_put_seconds_count")
        assert puts == 2  # of both files


async def test_batches_after_a_lost_one_of_a_new_producer_are_rejected_until_its_retry(
    store: FaultyStore, catalog: Catalog
) -> None:
    """Otherwise the retry of the lost batch would count as a duplicate."""
    topic, producer = catalog.topics.create("t", 1), catalog.producers.new_id()
    catalog.sessions.register(SESSIONS[0], "a test")
    async with writing_to(catalog.commits, store, flush_bytes=1, max_files_in_flight=1, write_attempts=1) as (
        path,
        _,
    ):

        async def send() -> list[AppendResult]:
            appends = [
                path.enqueue([batches(topic, 0, value, producer=producer, sequence=number)])[0]
                for number, value in enumerate(("first", "second"))
            ]
            return [(await append.wait())[0] for append in appends]

        store.fail_puts = 1
        lost, rejected = await send()
        assert isinstance(lost.error, AppendFailedError)
        assert rejected.refusal is RunRefusal.FOLLOWS_FAILED
        assert [each.base_offset for each in await send()] == [0, 1]
        assert [each.duplicate for each in await send()] == [True, True]
        store.fail_puts = 1
        (again,) = path.enqueue([batches(topic, 0, "third", producer=producer, sequence=2)])
        assert isinstance((await again.wait())[0].error, AppendFailedError)
        data = encode_batch([1000, 1000], [b"k"] * 2, [b"v"] * 2, producer=(producer, 0, 0))
        (rewound,) = path.enqueue([validate(topic, 0, bytearray(data), now_ms=2000)])
        assert (await rewound.wait())[0].refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE


async def test_batches_do_not_pass_a_lost_one_of_a_producer_whose_state_may_have_expired(
    store: FaultyStore, catalog: Catalog
) -> None:
    """Such a producer may begin a partition with any sequence, but not while it repeats a failed batch."""
    topic, producer = catalog.topics.create("t", 2), catalog.producers.new_id()
    catalog.producers.accept_any_sequence([(topic.topic_id, partition, producer) for partition in range(2)])
    catalog.sessions.register(SESSIONS[0], "a test")
    async with writing_to(catalog.commits, store, flush_bytes=1, max_files_in_flight=1, write_attempts=1) as (
        path,
        _,
    ):

        async def send(partition: int, sequence: int) -> AppendResult:
            (pending,) = path.enqueue([batches(topic, partition, "v", producer=producer, sequence=sequence)])
            return (await pending.wait())[0]

        assert (await send(1, 9)).base_offset == 0
        store.fail_puts = 1
        assert isinstance((await send(0, 0)).error, AppendFailedError)
        assert (await send(0, 1)).refusal is RunRefusal.FOLLOWS_FAILED
        assert [(await send(0, sequence)).base_offset for sequence in (0, 1)] == [0, 1]


async def test_the_producer_of_a_request_counts_in_all_files_that_the_request_fills(
    store: FaultyStore, catalog: Catalog
) -> None:
    topic, producer = catalog.topics.create("t", 3), catalog.producers.new_id()
    catalog.sessions.register(SESSIONS[0], "a test")
    async with writing_to(catalog.commits, store, flush_bytes=1, max_files_in_flight=1, write_attempts=1) as (
        path,
        _,
    ):
        store.fail_puts = 1
        lost, kept = path.enqueue(
            [batches(topic, partition, "v", producer=producer) for partition in range(2)]
        )
        (behind,) = path.enqueue([batches(topic, 0, "v", producer=producer, sequence=1)])
        assert isinstance((await lost.wait())[0].error, AppendFailedError)
        assert (await kept.wait())[0].appended
        assert (await behind.wait())[0].refusal is RunRefusal.FOLLOWS_FAILED


async def test_a_failed_file_notes_each_producer_once_whatever_its_partitions(
    store: FaultyStore, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file may fail with more sections than producers are remembered."""
    monkeypatch.setattr("agent.write.failed_producers.MAX_PRODUCERS", 2)
    topic = catalog.topics.create("t", 6)
    producers = [catalog.producers.new_id() for _ in range(2)]
    catalog.sessions.register(SESSIONS[0], "a test")
    async with writing_to(catalog.commits, store, max_files_in_flight=1, write_attempts=1) as (path, _):

        async def send(sequence: int) -> list[AppendResult]:
            pending = [
                path.enqueue_together(
                    [
                        batches(topic, partition, "v", producer=producer, sequence=sequence)
                        for partition in range(6)
                    ]
                )
                for producer in producers
            ]
            path.flush()
            return [result for each in pending for result in await each.wait()]

        store.fail_puts = 1
        assert all(isinstance(each.error, AppendFailedError) for each in await send(0))
        assert {each.refusal for each in await send(1)} == {RunRefusal.FOLLOWS_FAILED}


async def test_a_fenced_session_fails_its_files_and_is_replaced(store: FaultyStore) -> None:
    async with writing(store, flush_bytes=1) as harness:
        harness.log.fenced.add(SESSIONS[0])
        (failure,) = (await harness.path.append([batches(A, 0, "old")]))[0]
        (success,) = (await harness.path.append([batches(A, 0, "new")]))[0]
        assert isinstance(failure.error, AppendFailedError)
        assert success.base_offset == 0
        assert harness.log.committed[0].session_id == SESSIONS[1]


async def test_a_full_buffer_rejects_a_whole_append_and_accepts_it_later(store: FaultyStore) -> None:
    first, second, third = (batches(A, 0, "x" * 100) for _ in range(3))
    limit = len(first.data) + len(second.data)
    async with writing(store, flush_bytes=1, max_buffered_bytes=limit, max_request_bytes=1) as harness:
        store.gate.clear()
        pending = harness.path.enqueue([first, second])
        with pytest.raises(BusyError) as rejection:
            harness.path.enqueue([third])
        assert rejection.value.retry_after_seconds is not None
        assert harness.path.budget.used == limit
        store.gate.set()
        for each in pending:
            await each.wait()
        await until(lambda: harness.path.budget.used == 0)
        (results,) = await harness.path.append([third])
        assert results[0].base_offset == 2


async def test_a_cancelled_append_is_committed_nevertheless(store: FaultyStore) -> None:
    async with writing(store, flush_bytes=1) as harness:
        store.gate.clear()
        waiting = asyncio.ensure_future(harness.path.append([batches(A, 0, "x")]))
        await until(lambda: store.puts_begun == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        store.gate.set()
        (results,) = await harness.path.append([batches(A, 0, "y")])
        assert (results[0].base_offset, harness.log.ends[PartitionId(A.topic_id, 0)]) == (1, 2)


async def test_stopping_completes_accepted_appends_and_rejects_new_ones(store: FaultyStore) -> None:
    async with writing(store) as harness:
        store.gate.clear()
        pending = [harness.path.enqueue([batches(A, number, "x")])[0] for number in range(3)]
        stopping = asyncio.ensure_future(harness.path.stop())
        await until(lambda: store.puts_begun == 1)
        with pytest.raises(StoppingError):
            harness.path.enqueue([batches(A, 0, "late")])
        store.gate.set()
        await stopping
        assert [(await each.wait())[0].base_offset for each in pending] == [0, 0, 0]


async def test_a_draining_write_path_does_not_wait_for_further_appends(store: FaultyStore) -> None:
    async with writing(store) as harness:
        harness.path.drain()
        (results,) = await harness.path.append([batches(A, 0, "x")])
        assert results[0].base_offset == 0


async def test_each_idempotent_batch_is_a_separate_run(store: FaultyStore) -> None:
    """Other batches are joined, even those of different appends. Each batch gets its own result."""
    async with writing(store) as harness:
        pending = harness.path.enqueue(
            [
                batches(A, 0, "a", "b"),
                batches(A, 0, "c"),
                batches(A, 0, "d", "e", producer=9),
                batches(A, 0, "f"),
            ]
        )
        harness.path.flush()
        results = [[result.base_offset for result in await each.wait()] for each in pending]
        assert results == [[0, 1], [2], [3, 4], [5]]
        runs = harness.log.committed[0].sections[0].runs
        assert [(run.first_offset, run.offset_count, run.producer is not None) for run in runs] == [
            (0, 3, False),
            (3, 1, True),
            (4, 1, True),
            (5, 1, False),
        ]


async def test_buffers_are_released_right_after_the_commit(store: FaultyStore) -> None:
    """They wait neither for a garbage collection nor for the next file."""
    gc.disable()
    try:
        async with writing(store) as harness:
            buffer = np.array(bytearray(encode_batch([1000], [b"k"], [b"v"])), np.uint8)
            reference = weakref.ref(buffer)
            pending = harness.path.enqueue([validate(A, 0, buffer.data, now_ms=2000)])
            del buffer
            harness.path.flush()
            (results,) = [await each.wait() for each in pending]
            del pending
            assert results[0].appended
            async with asyncio.timeout(240):
                await until(lambda: reference() is None)
    finally:
        gc.enable()


async def test_a_waiter_continues_in_the_next_iteration_of_the_loop() -> None:
    """The response is on its way before the commit is announced to other agents."""
    pending = PendingAppend(1)
    waiters = [asyncio.ensure_future(pending.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    pending.complete_one(0, AppendResult(base_offset=7))
    await asyncio.sleep(0)
    assert [each.done() for each in waiters] == [True] * 3
    assert waiters[0].cancelled()
    assert [each.result()[0].base_offset for each in waiters[1:]] == [7, 7]


async def test_an_empty_append_completes_at_once(store: FaultyStore) -> None:
    async with writing(store) as harness:
        assert await harness.path.append([]) == []
        empty: Any = await harness.path.append([batches(A, 0)])
        assert empty == [[]]
