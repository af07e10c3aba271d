"""Muted connections, and the rate of new ones."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kafka.connection.creation_rate import MAX_DELAY_SECONDS, REJECTED, SERVED, UNLIMITED, CreationRate
from agent.kafka.connection.responses import ResponseWriter
from agent.quotas.rates import Windows
from core.clock import ManualClock
from tests.agent.kafka.scripted import Scripted

if TYPE_CHECKING:
    from agent.quotas.follower import QuotaFollower

_LONG = 3600.0


@pytest.mark.anyio
async def test_a_muted_connection_handles_what_has_arrived_and_receives_nothing() -> None:
    scripted = Scripted()
    scripted.send("lc")
    scripted.connection.mute(_LONG)
    scripted.send("o")
    scripted.dispatcher.committed.set()
    await scripted.run_until_idle()
    assert scripted.responses == [0, 1]
    assert not scripted.transport.is_reading
    assert scripted.budget.used == 0
    scripted.connection._unmute()
    await scripted.run_until_idle()
    assert scripted.responses == [0, 1, 2]
    scripted.lose()


@pytest.mark.anyio
async def test_a_request_that_arrived_in_part_is_received_before_the_mute() -> None:
    """Its memory would be retained otherwise."""
    scripted = Scripted()
    rest = scripted.begin("o", size=300_000, count=1000)
    scripted.connection.mute(_LONG)
    assert scripted.transport.is_reading
    scripted.send_bytes(rest + scripted.frame("o", 9))
    await scripted.run_until_idle()
    assert scripted.responses == [0]
    assert (scripted.transport.is_reading, scripted.budget.used) == (False, 0)
    scripted.lose()


@pytest.mark.anyio
async def test_the_longest_mute_holds_and_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted()
    resumed = asyncio.Event()
    monkeypatch.setattr(scripted.transport, "resume_reading", resumed.set)
    scripted.connection.mute(0.0)
    scripted.connection.mute(0.02)
    scripted.connection.mute(0.001)
    timer = scripted.connection._muted
    assert timer is not None
    scripted.connection.mute(0.01)
    assert scripted.connection._muted is timer
    async with asyncio.timeout(60):
        await resumed.wait()
    scripted.lose()


@pytest.mark.anyio
@pytest.mark.parametrize("ends_by", ["finish", "abort", "lose"])
async def test_a_mute_delays_no_end(ends_by: str) -> None:
    scripted = Scripted()
    scripted.connection.mute(_LONG)
    timer = scripted.connection._muted
    assert timer is not None
    if ends_by == "lose":
        scripted.lose()
    else:
        getattr(scripted.connection, ends_by)()
    await scripted.run_until_idle()
    assert scripted.is_gone
    assert timer.cancelled()


@pytest.mark.anyio
async def test_a_writer_notices_that_its_peer_has_closed() -> None:
    ours, theirs = socket.socketpair()

    class Transport:
        def get_extra_info(self, _: str) -> socket.socket:
            return ours

    writer = ResponseWriter(asyncio.get_running_loop(), cast("asyncio.Transport", Transport()))
    assert not writer.peer_has_closed()
    theirs.send(b"unread")
    assert not writer.peer_has_closed()
    theirs.close()
    assert writer.peer_has_closed()
    ours.close()
    assert writer.peer_has_closed()


class _NoQuotas:
    active = None


def rate_of(limit: int, clock: ManualClock) -> CreationRate:
    windows = Windows(count=11, window_ms=1000)
    return CreationRate(limit, cast("QuotaFollower", _NoQuotas()), windows, clock.monotonic)


def test_an_unlimited_rate_delays_nothing() -> None:
    rate = rate_of(UNLIMITED, ManualClock())
    assert {rate.admit("a") for _ in range(1000)} == {SERVED}


@given(st.lists(st.integers(0, 400), min_size=1, max_size=400), st.integers(1, 30))
def test_connections_are_served_in_order_and_never_faster_than_the_rate(
    pauses: list[int], limit: int
) -> None:
    """Ten windows of the rate may come at once; then one at a time, or none."""
    clock = ManualClock()
    rate = rate_of(limit, clock)
    served: list[float] = []
    for pause in pauses:
        clock.advance(pause / 1000)
        admission = rate.admit("a")
        if admission == REJECTED:
            continue
        assert admission.delay_seconds <= MAX_DELAY_SECONDS + 1
        served.append(clock.monotonic() + admission.delay_seconds)
    assert served == sorted(served)
    for index, moment in enumerate(served):
        within = [each for each in served[: index + 1] if each > moment - 10]
        assert len(within) <= 21 * limit + 2
