"""Groups of files that are committed in one transaction."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from typing_extensions import override

from agent.runtime.work_pool import WorkPool
from agent.write.commit_groups import MAX_RUNS, Flight, FlightQueue
from agent.write.ingestion_buffer import OpenFile
from agent.write.validation import validate
from object_format.record_batch.records import encode_batch
from tests.agent.write.test_write_path import (
    SESSIONS,
    A,
    Harness,
    batches,
    until,
    writing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.cluster.commits import CommitListener
    from agent.write.ingestion_file import SealedFile
    from agent.write.pending_append import AppendResult, PendingAppend
    from agent.write.validation import ValidatedAppend
    from agent.write.write_path import WritePath
    from catalog.model import SectionResult
    from tests.agent.faulty_store import FaultyStore

pytestmark = pytest.mark.anyio

EACH_APPEND_FILLS_A_FILE = {"flush_bytes": 1, "max_files_in_flight": 8}


def _flight(
    *, is_uploaded: bool = True, runs: int = 1, session: int = 0, has_transactions: bool = False
) -> Flight:
    upload: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    if is_uploaded:
        sections = [SimpleNamespace(runs=range(runs - runs // 2)), SimpleNamespace(runs=range(runs // 2))]
        commit = SimpleNamespace(session_id=SESSIONS[session], sections=sections)
        upload.set_result(SimpleNamespace(commit=commit))
    file = OpenFile()
    file.has_transactions = has_transactions
    return Flight(file, cast("asyncio.Task[SealedFile]", upload))


async def _sizes(*flights: Flight) -> list[int]:
    """Return the sizes of the groups of files in flight, as long as an upload has ended."""
    queue = FlightQueue()
    for each in flights:
        queue.put(each)
    found: list[Flight] = []
    sizes = []
    while len(found) < len(flights) and flights[len(found)].upload.done():
        group = await queue.next_group()
        sizes.append(len(group))
        found += group
    assert found == list(flights[: len(found)])
    return sizes


async def test_a_group_ends_before_a_file_that_is_not_uploaded() -> None:
    assert await _sizes(_flight(), _flight(), _flight(is_uploaded=False), _flight()) == [2]


async def test_a_group_ends_before_a_failed_or_cancelled_upload() -> None:
    failed, cancelled = _flight(is_uploaded=False), _flight(is_uploaded=False)
    failed.upload.set_exception(OSError("the store is away"))
    cancelled.upload.cancel()
    assert await _sizes(_flight(), _flight(), failed, _flight(), _flight(), _flight()) == [2, 1, 3]
    assert await _sizes(_flight(), cancelled, _flight(), _flight()) == [1, 1, 2]


async def test_a_file_with_a_transaction_is_alone() -> None:
    transactional = partial(_flight, has_transactions=True)
    assert await _sizes(_flight(), transactional(), transactional(), _flight(), _flight()) == [1, 1, 1, 2]


async def test_a_group_has_one_session() -> None:
    assert await _sizes(_flight(), _flight(), _flight(session=1), _flight(session=1)) == [2, 2]


async def test_a_group_is_bounded_by_the_runs_of_its_files() -> None:
    assert await _sizes(_flight(runs=MAX_RUNS - 1), _flight(), _flight()) == [2, 1]
    assert await _sizes(_flight(), _flight(runs=MAX_RUNS), _flight()) == [1, 1, 1]
    assert await _sizes(_flight(runs=2 * MAX_RUNS), _flight(), _flight()) == [1, 2]


async def test_the_queue_waits_for_a_file_and_for_its_upload() -> None:
    queue = FlightQueue()
    for _ in range(2):
        waiting = asyncio.ensure_future(queue.next_group())
        await asyncio.sleep(0)
        flight, behind = _flight(is_uploaded=False), _flight(is_uploaded=False)
        queue.put(flight)
        queue.put(behind)
        await asyncio.sleep(0)
        assert not waiting.done()
        uploaded = _flight().upload.result()
        flight.upload.set_result(uploaded)
        assert list(await waiting) == [flight]
        behind.upload.set_result(uploaded)
        assert list(await queue.next_group()) == [behind]


async def _uploaded(path: WritePath, *appends: ValidatedAppend) -> list[PendingAppend]:
    """Append each to a separate file; wait until each upload has ended before the next one begins."""
    pending = []
    for each in appends:
        pending += path.enqueue([each])
        await until(lambda: not path._uploads)
    return pending


async def _behind_a_commit(harness: Harness) -> PendingAppend:
    """Begin a commit that waits until the gate is set."""
    harness.log.gate.clear()
    (pending,) = await _uploaded(harness.path, batches(A, 7, "first"))
    await until(lambda: harness.log.groups == [1])
    return pending


class _OpensOnce(threading.Event):
    """A gate that calls `change` at its first passage."""

    def __init__(self, change: Callable[[], None]) -> None:
        super().__init__()
        self._change: Callable[[], None] | None = change

    @override
    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        if self._change is not None:
            self._change()
            self._change = None
        return True


async def _results(pending: Sequence[PendingAppend]) -> list[AppendResult]:
    return [(await each.wait())[0] for each in pending]


async def test_files_that_wait_for_a_commit_take_one_call(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    run = WorkPool.run

    async def record(pool: WorkPool, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        calls.append(pool.name)
        return await run(pool, call)

    monkeypatch.setattr(WorkPool, "run", record)
    async with writing(store, **EACH_APPEND_FILLS_A_FILE) as harness:
        first = await _behind_a_commit(harness)
        waiting = await _uploaded(harness.path, *(batches(A, 0, f"v{number}") for number in range(3)))
        harness.log.gate.set()
        assert [each.base_offset for each in await _results([first, *waiting])] == [0, 0, 1, 2]
        assert harness.log.groups == [1, 3]
        assert calls == ["uploads", "commits", "uploads", "uploads", "uploads", "commits"]
        sample = harness.path._metrics.registry.get_sample_value
        assert sample("siltstone_ingestion_commit_seconds_count") == 4
        await until(lambda: harness.path.budget.used == harness.path.files_in_flight == 0)


async def test_a_failed_upload_divides_the_files(store: FaultyStore) -> None:
    """The files behind it know that batches of its producer are missing."""
    async with writing(store, **EACH_APPEND_FILLS_A_FILE, write_attempts=1) as harness:
        await _behind_a_commit(harness)
        before = await _uploaded(harness.path, batches(A, 0, "a"), batches(A, 0, "b"))
        store.fail_puts = 1
        (lost,) = await _uploaded(harness.path, batches(A, 0, "lost", producer=7))
        behind = await _uploaded(
            harness.path, batches(A, 0, "c", producer=7, sequence=1), batches(A, 0, "d", producer=8)
        )
        harness.log.gate.set()
        assert [each.base_offset for each in await _results([*before, *behind])] == [0, 1, 2, 3]
        assert (await lost.wait())[0].error is not None
        assert harness.log.groups == [1, 2, 2]
        assert [each.failed_producers for each in harness.log.committed[-2:]] == [{(7, 0)}, frozenset()]


@pytest.mark.parametrize("fault", ["fail", "lose_responses"])
async def test_a_group_stays_together_in_an_outage(store: FaultyStore, fault: str) -> None:
    async with writing(store, **EACH_APPEND_FILLS_A_FILE) as harness:
        await _behind_a_commit(harness)
        waiting = await _uploaded(harness.path, *(batches(A, 0, f"v{number}") for number in range(3)))
        gate = harness.log.gate
        harness.log.gate = _OpensOnce(partial(setattr, harness.log, fault, 1))
        gate.set()
        assert [each.base_offset for each in await _results(waiting)] == [0, 1, 2]
        assert harness.log.groups == [1, 3, 3]
        assert len(harness.log.committed) == 4


async def test_a_group_fails_together_if_an_outage_lasts(store: FaultyStore) -> None:
    """Its producers do not wait for further attempts of each file. The next file is tried."""
    async with writing(store, **EACH_APPEND_FILLS_A_FILE, write_attempts=2) as harness:
        await _behind_a_commit(harness)
        waiting = await _uploaded(harness.path, *(batches(A, 0, f"v{number}") for number in range(3)))
        gate = harness.log.gate
        harness.log.gate = _OpensOnce(partial(setattr, harness.log, "fail", 2))
        gate.set()
        for each in await _results(waiting):
            assert each.error is not None
            assert "unknown whether" in each.error.message
        assert harness.log.groups == [1, 3, 3]
        sample = harness.path._metrics.registry.get_sample_value
        assert sample("siltstone_ingestion_commit_seconds_count") == 4  # failures count, too
        (behind,) = await _uploaded(harness.path, batches(A, 0, "behind"))
        assert [each.base_offset for each in await _results([behind])] == [0]


async def test_one_bad_file_of_a_group_fails_alone(store: FaultyStore) -> None:
    """The files behind it know that batches of its producer are missing."""
    async with writing(store, **EACH_APPEND_FILLS_A_FILE, write_attempts=1) as harness:
        await _behind_a_commit(harness)
        waiting = await _uploaded(
            harness.path,
            batches(A, 0, "a"),
            batches(A, 0, "bad", producer=7),
            batches(A, 0, "b", producer=7, sequence=1),
        )
        harness.log.broken.add(store.put_names[2])
        harness.log.gate.set()
        before, bad, behind = await _results(waiting)
        assert (before.base_offset, behind.base_offset) == (0, 1)
        assert bad.error is not None
        assert "unknown whether" in bad.error.message
        assert harness.log.groups == [1, 3, 1, 1, 1]
        assert [each.failed_producers for each in harness.log.committed[1:]] == [frozenset(), {(7, 0)}]


async def test_the_files_of_a_fenced_session_fail_and_the_next_ones_do_not(store: FaultyStore) -> None:
    async with writing(store, **EACH_APPEND_FILLS_A_FILE) as harness:
        first = await _behind_a_commit(harness)
        fenced = await _uploaded(harness.path, batches(A, 0, "a"), batches(A, 0, "b"))
        harness.log.fenced.add(SESSIONS[0])
        harness.log.gate.set()
        for each in await _results([first, *fenced]):
            assert each.error is not None
            assert each.error.message.startswith("the records were not committed; ")
        (results,) = await harness.path.append([batches(A, 0, "new")])
        assert results[0].base_offset == 0
        assert [commit.session_id for commit in harness.log.committed] == [SESSIONS[1]]


async def test_files_with_transactions_are_committed_alone(store: FaultyStore) -> None:
    def in_transaction(sequence: int) -> ValidatedAppend:
        data = encode_batch([1000], [b"k"], [b"v"], producer=(9, 0, sequence), is_transactional=True)
        return validate(A, 0, bytearray(data), now_ms=2000, transactional_id="t")

    async with writing(store, **EACH_APPEND_FILLS_A_FILE) as harness:
        await _behind_a_commit(harness)
        waiting = await _uploaded(
            harness.path, *map(in_transaction, range(2)), batches(A, 0, "v"), batches(A, 0, "v", producer=9)
        )
        harness.log.gate.set()
        assert [each.base_offset for each in await _results(waiting)] == [0, 1, 2, 3]
        assert harness.log.groups == [1, 1, 1, 2]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("sizes", [(400, 400, 400), (800, 400), (400, 400, 800, 400), (2000,)])
async def test_each_file_that_a_request_reaches_knows_its_producer(
    store: FaultyStore, sizes: tuple[int, ...], *, together: bool
) -> None:
    """A file may begin with a later partition of the request, or have a middle part of it."""
    appends = []
    for partition, size in enumerate(sizes):
        batches_ = [
            encode_batch([1000], [b"k"], [b"v" * 400], producer=(9, 0, number), is_transactional=True)
            for number in range(size // 400)
        ]
        data = bytearray(b"".join(batches_))
        appends.append(validate(A, partition, data, now_ms=2000, transactional_id="t"))
    async with writing(store, flush_bytes=700, max_files_in_flight=8) as harness:
        store.gate.clear()
        harness.path.enqueue([batches(A, 1, "v")])
        assert not harness.path._buffer.open.has_transactions
        if together:
            harness.path.enqueue_together(appends)
        else:
            harness.path.enqueue(appends)
        files = [*(flight.file for flight in harness.path._flights._flights), harness.path._buffer.open]
        files = [file for file in files if file.size]
        assert len(files) > 1
        for file in files:
            assert (file.has_transactions, file.opened_at > 0) == (True, True)
            assert (9, 0) in file.producers
        assert [file.requests[9] for file in files] == [0] * (len(files) - 1) + [1]


async def test_a_failed_file_that_began_within_a_request_fails_its_producer(store: FaultyStore) -> None:
    """Later batches of the producer must wait for the retry of those that the file has lost."""
    request = [batches(A, 0, "v" * 400, producer=7), batches(A, 1, "v", producer=7)]
    async with writing(store, flush_bytes=400, write_attempts=1, max_files_in_flight=1) as harness:
        harness.log.gate.clear()
        pending = harness.path.enqueue(request)
        await until(lambda: harness.log.groups == [1])
        store.fail_puts = 1
        harness.path.flush()
        harness.log.gate.set()
        first, lost = [(await each.wait())[0] for each in pending]
        assert (first.error is None, lost.error is None) == (True, False)
        (behind,) = harness.path.enqueue([batches(A, 1, "v", producer=7, sequence=1)])
        harness.path.flush()
        assert (await behind.wait())[0].error is None
        assert harness.log.committed[-1].failed_producers == {(7, 0)}


async def test_each_file_of_a_group_is_completed_before_the_next_one(store: FaultyStore) -> None:
    """Listeners see the files in their order, and responses come before the next file's listeners."""
    events: list[str] = []

    class Listener:
        def committed(self, _file: object, results: Sequence[SectionResult], /) -> None:
            events.append(f"commit {results[0].runs[0].base_offset}")

    async def respond(pending: PendingAppend) -> None:
        events.append(f"response {(await pending.wait())[0].base_offset}")

    async with writing(store, **EACH_APPEND_FILLS_A_FILE) as harness:
        harness.path._listeners = (cast("CommitListener", Listener()),)
        await _behind_a_commit(harness)
        waiting = await _uploaded(harness.path, *(batches(A, 0, f"v{number}") for number in range(3)))
        responses = [asyncio.ensure_future(respond(each)) for each in waiting]
        await asyncio.sleep(0)
        harness.log.gate.set()
        await asyncio.gather(*responses)
        numbers = [f"{kind} {offset}" for offset in range(3) for kind in ("commit", "response")]
        assert events[1:] == numbers


async def test_the_buffers_of_a_group_are_released_right_after_the_commit(store: FaultyStore) -> None:
    """They wait neither for a garbage collection nor for the next file."""
    gc.disable()
    try:
        async with writing(store, **EACH_APPEND_FILLS_A_FILE) as harness:
            await _behind_a_commit(harness)
            references = []
            pending: list[PendingAppend] = []
            for _ in range(3):
                buffer = np.array(bytearray(encode_batch([1000], [b"k"], [b"v"])), np.uint8)
                references.append(weakref.ref(buffer))
                append = validate(A, 0, buffer.data, now_ms=2000)
                del buffer
                pending += await _uploaded(harness.path, append)
                del append
            harness.log.gate.set()
            assert all(each.appended for each in await _results(pending))
            pending.clear()
            assert harness.log.groups == [1, 3]
            async with asyncio.timeout(240):
                await until(lambda: all(reference() is None for reference in references))
    finally:
        gc.enable()
