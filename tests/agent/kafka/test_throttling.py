"""Throttle times in encoded responses, and the time that a request takes."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from agent.kafka.api_registry import APIS
from agent.kafka.codec import Message, Struct
from agent.kafka.codec.schema import schema_of
from agent.kafka.dispatcher import encode
from agent.kafka.throttling import state_throttle_time
from agent.runtime.request_time import Measured, RequestTime, current_request
from agent.runtime.work_pool import WorkPool
from core.clock import ManualClock
from tests.agent.kafka.wire import filled_request, read_response

_CASES = [(api.name, version) for api in APIS for version in range(api.min_version, api.max_version + 1)]


def test_every_response_with_a_throttle_time_states_it() -> None:
    """Wherever the field is, and nothing else changes. A longer time of the response itself stays."""
    stated = 0
    for name, version in _CASES:
        api = next(each for each in APIS if each.name == name)
        schema = schema_of(name, version, "response")
        response = filled_request(schema, "x", throttle_time=5)
        frame = encode(api, version, 9, response)
        changed, throttle_ms = state_throttle_time(frame, name, version, 70_000)
        assert throttle_ms == 70_000
        found = read_response(name, version, memoryview(b"".join(changed))[8:])
        before = read_response(name, version, memoryview(b"".join(frame))[8:])
        if any(each.name == "throttle_time" for each in schema.fields):
            stated += 1
            assert found.throttle_time == 70_000
            found.throttle_time = 5
            first = schema.fields[0].name == "throttle_time"
            assert not first or state_throttle_time(frame, name, version, 1)[1] == 5
        assert found == before, (name, version)
    assert stated > len(_CASES) / 2
    assert Message.of("produce", 9).is_flexible


@pytest.mark.anyio
async def test_only_the_steps_of_a_request_take_time() -> None:
    """And the calls in threads. The time between steps belongs to other requests."""
    clock = ManualClock()
    pool = WorkPool("work", threads=1, max_waiting=1)
    time = RequestTime(clock.monotonic)
    is_waiting = threading.Event()

    async def step() -> str:
        clock.advance(1)
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def work_for_others() -> None:
            clock.advance(100)
            waiting.set_result(None)

        asyncio.get_running_loop().call_soon(work_for_others)
        await waiting
        clock.advance(2)
        asyncio.get_running_loop().call_soon(is_waiting.set)
        with pytest.raises(ValueError, match="in a thread"):
            await pool.run(fail)
        assert current_request.get() is time
        return "done"

    def fail() -> None:
        assert is_waiting.wait(60)  # otherwise the loop's step might still be running
        clock.advance(4)
        raise ValueError("in a thread")

    time.stop()
    assert await Measured(time, step()) == "done"
    assert current_request.get() is None
    await pool.run(lambda: clock.advance(8))
    assert time.close() == 7
    call = partial(clock.advance, 8)
    assert time.timed(call) is call
    pool.close()


@pytest.mark.anyio
async def test_a_measured_request_can_be_cancelled() -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def measure() -> None:
        await Measured(RequestTime(ManualClock().monotonic), wait())

    task = asyncio.ensure_future(measure())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]


def test_structs_state_their_own_throttle_time() -> None:
    api = next(each for each in APIS if each.name == "create_topics")
    frame = encode(api, 7, 1, Struct(topics=[], throttle_time=300))
    assert state_throttle_time(frame, "create_topics", 7, 0) == (frame, 300)
