"""Memory budgets, thread pools, retries and health."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from agent.runtime.byte_budget import ByteBudget
from agent.runtime.errors import BusyError
from agent.runtime.retry import RetryPolicy
from agent.runtime.work_pool import WorkPool
from agent.settings import AgentSettings
from catalog.database.pool import MAX_BACKOFF_SECONDS
from core.clock import ManualClock
from core.errors import RetryableError, StaleStateError
from core.ids import SeededIds

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


def test_a_reservation_is_all_or_nothing() -> None:
    budget = ByteBudget("the buffer", 10)
    budget.reserve(7)
    with pytest.raises(BusyError, match="the buffer is full: 7 of 10 bytes are in use, 4 more do not fit"):
        budget.reserve(4)
    assert budget.used == 7
    budget.reserve(3)
    budget.release(10)
    assert (budget.used, budget.rejections) == (0, 1)


def test_a_release_of_more_than_is_reserved_is_an_error() -> None:
    budget = ByteBudget("the buffer", 10)
    budget.reserve(2)
    with pytest.raises(ValueError, match="3 bytes released while 2 are reserved"):
        budget.release(3)


async def test_a_full_pool_rejects_further_calls() -> None:
    pool = WorkPool("test", threads=1, max_waiting=1)
    gate = threading.Event()
    calls = [asyncio.ensure_future(pool.run(gate.wait)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(BusyError, match="2 calls of kind test"):
        await pool.run(gate.wait)
    gate.set()
    assert await asyncio.gather(*calls) == [True, True]
    assert await pool.run(lambda: 7) == 7
    pool.close()


async def test_a_call_wakes_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result and the end of the call arrive by one message from the thread."""
    pool = WorkPool("test", threads=1, max_waiting=1)
    loop = asyncio.get_running_loop()
    wake_ups: list[object] = []
    call_soon_threadsafe = loop.call_soon_threadsafe

    def noting(callback: Callable[..., object], *arguments: object) -> object:
        wake_ups.append(callback)
        return call_soon_threadsafe(callback, *arguments)

    monkeypatch.setattr(loop, "call_soon_threadsafe", noting)
    assert await pool.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0)
    assert (len(wake_ups), pool.pending) == (2, 0)
    pool.close()


async def test_a_cancelled_call_that_waits_for_a_thread_does_not_start() -> None:
    """It is removed from the pool."""
    pool = WorkPool("test", threads=1, max_waiting=1)
    gate, begun = threading.Event(), threading.Event()
    first = asyncio.ensure_future(pool.run(gate.wait))
    second = asyncio.ensure_future(pool.run(begun.set))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.set()
    assert await first
    assert await pool.run(begun.is_set) is False
    assert pool.pending == 0
    pool.close()


async def test_a_running_call_counts_as_pending_after_its_caller_is_cancelled() -> None:
    pool = WorkPool("test", threads=1, max_waiting=1)
    gate = threading.Event()
    begun = threading.Event()

    def call() -> None:
        begun.set()
        gate.wait()

    cancelled = asyncio.ensure_future(pool.run(call))
    await asyncio.to_thread(begun.wait)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert pool.pending == 1
    gate.set()
    await pool.run(lambda: None)
    assert pool.pending == 0
    pool.close()


def test_a_call_that_outlives_its_loop_ends_silently(caplog: pytest.LogCaptureFixture) -> None:
    """An agent that stops does not wait for a heartbeat that hangs."""
    pool = WorkPool("test", threads=1, max_waiting=1)
    gate, begun = threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        gate.wait()

    async def abandon() -> None:
        calling = asyncio.ensure_future(pool.run(call))
        await asyncio.to_thread(begun.wait)
        calling.cancel()

    asyncio.run(abandon())
    gate.set()
    pool._executor.shutdown()  # the agent does not close its pools
    assert [record for record in caplog.records if record.name.startswith("concurrent")] == []


def _policy(attempts: int) -> RetryPolicy:
    return RetryPolicy(attempts=attempts, first_pause=0.001, max_pause=0.002, ids=SeededIds(1, ManualClock()))


async def test_retries_end_with_the_first_success() -> None:
    outcomes: list[RetryableError | str] = [RetryableError("away"), RetryableError("away"), "there"]

    async def call() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, RetryableError):
            raise outcome
        return outcome

    assert await _policy(3).run(call) == "there"


async def test_only_retryable_errors_are_retried_and_only_so_often() -> None:
    calls: list[str] = []

    async def fail(error: Exception) -> None:
        calls.append(type(error).__name__)
        raise error

    with pytest.raises(RetryableError):
        await _policy(3).run(lambda: fail(RetryableError("away")))
    with pytest.raises(StaleStateError):
        await _policy(3).run(lambda: fail(StaleStateError("moved on")))
    assert calls == ["RetryableError"] * 3 + ["StaleStateError"]


def test_pauses_grow_up_to_their_cap_with_jitter() -> None:
    policy = RetryPolicy(attempts=9, first_pause=0.1, max_pause=1.0, ids=SeededIds(1, ManualClock()))
    for attempt, full in enumerate((0.1, 0.2, 0.4, 0.8, 1.0, 1.0), 1):
        assert full / 2 <= policy.pause(attempt) <= full


def test_a_write_is_repeated_within_three_seconds_of_the_end_of_an_outage() -> None:
    """A pause of the write path and one of the catalog may begin just before PostgreSQL returns."""
    settings = AgentSettings()
    policy = RetryPolicy(
        attempts=settings.write_attempts,
        first_pause=settings.retry_pause_ms / 1000,
        max_pause=settings.max_retry_pause_ms / 1000,
        ids=SeededIds(1, ManualClock()),
    )
    longest = max(policy.pause(100), settings.poll_interval_ms / 1000)
    assert 0 < longest + MAX_BACKOFF_SECONDS <= 3
