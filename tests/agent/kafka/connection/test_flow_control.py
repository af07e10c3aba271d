"""Flow control of a connection: when it receives, and when it pauses."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kafka.connection.frames import RECEIVE_BYTES
from tests.agent.kafka.scripted import Scripted

pytestmark = pytest.mark.anyio

_WITH_RESPONSE = "ohlcw"
_SIZES = st.sampled_from([9, 300, 40_000, RECEIVE_BYTES, 300_000])
_STEPS = st.one_of(
    st.tuples(st.just("send"), st.text("oh0lcwn", min_size=1, max_size=12), _SIZES),
    st.sampled_from([("full",), ("empty",), ("commit",), ("run_until_idle",), ("iteration",)]),
)


@pytest.mark.parametrize("size", [9, 300_000])
@pytest.mark.parametrize("kinds", ["o", "h", "0", "l", "c", "n", "w", "cnol0h"])
async def test_a_connection_handles_more_requests_than_may_be_open_at_a_time(kinds: str, size: int) -> None:
    """With immediate, deferred or no responses."""
    scripted = Scripted(pending=4, budget=2_000_000)
    scripted.dispatcher.committed.set()
    for _ in range(10):
        scripted.send(kinds * (12 // len(kinds)), size=size)
        await scripted.run_until_idle()
    assert scripted.is_read_to_the_end
    assert scripted.dispatcher.handled == list(range(120))
    assert scripted.transport.is_reading
    scripted.lose()


async def test_requests_behind_a_slow_one_are_handled_once_its_response_has_left() -> None:
    scripted = Scripted(pending=8)
    scripted.send("w" + "o" * 7)
    scripted.send("0" * 100)
    was_full = not scripted.transport.is_reading
    scripted.dispatcher.committed.set()
    await scripted.run_until_idle()
    assert was_full
    assert scripted.responses == list(range(8))
    assert scripted.dispatcher.handled == list(range(108))
    assert scripted.transport.is_reading
    scripted.lose()


async def test_a_request_keeps_the_time_of_its_arrival_while_it_waits_for_others() -> None:
    """Its client may have given it up before its turn, and repeated it at another agent."""
    scripted = Scripted()
    for now, kind in enumerate("wccc"):
        scripted.dispatcher.now = float(now)
        scripted.send(kind)
    scripted.dispatcher.now = 9.0
    scripted.dispatcher.committed.set()
    await scripted.run_until_idle()
    assert scripted.dispatcher.arrivals == [0.0, 1.0, 2.0, 3.0]
    scripted.lose()


async def _play(steps: list[tuple[str, ...]]) -> None:
    scripted = Scripted(pending=4, budget=700_000)
    for step, *rest in steps:
        if step == "send":
            kinds, size = rest
            scripted.send(kinds, size=int(size))
        elif step == "commit":
            scripted.dispatcher.committed.set()
        elif step == "run_until_idle":
            await scripted.run_until_idle()
        elif step == "iteration":
            await asyncio.sleep(0)
            scripted.dispatcher.committed.clear()
        else:
            scripted.transport.fill(full=step == "full")
    scripted.transport.fill(full=False)
    scripted.dispatcher.committed.set()
    await scripted.run_until_idle()
    assert scripted.is_read_to_the_end
    assert scripted.transport.is_reading
    assert scripted.connection.has_no_requests
    assert scripted.budget.used == scripted.dispatcher.retained == 0
    assert scripted.dispatcher.handled == list(range(len(scripted.sent)))
    assert scripted.responses == [number for number, kind in scripted.sent if kind in _WITH_RESPONSE]
    scripted.lose()


@given(st.lists(_STEPS, max_size=12))
def test_a_connection_without_open_requests_receives(steps: list[tuple[str, ...]]) -> None:
    """For every order of requests, commits and reads of the client. No memory stays in use."""
    with patch("agent.kafka.connection.connection._RETRY_SECONDS", 0):
        asyncio.run(_play(steps))
