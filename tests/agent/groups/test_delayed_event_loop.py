"""A delayed event loop: members are not removed for heartbeats that the agent itself read too late."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from agent.group_settings import GroupSettings
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, ConsumerHeartbeat
from agent.groups.errors import ErrorCode, GroupError
from core.clock import ManualClock
from tests.agent.groups.coordinators import open_coordinator

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from agent.groups.coordinator import GroupCoordinator
    from catalog.open import Catalog
    from core.ids import Ids

_SESSION_SECONDS = 45
_SETTINGS = GroupSettings(group_consumer_session_timeout_ms=1000 * _SESSION_SECONDS)
_JOIN = ConsumerHeartbeat(
    member_id="m",
    member_epoch=0,
    rebalance_timeout_ms=1_000,
    topics=frozenset({"granite"}),
    owned=EMPTY_ASSIGNMENT,
)


class ManualClockLoop(asyncio.SelectorEventLoop):
    """An event loop with a manual clock; a large step of the clock delays the loop."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._manual = clock

    @override
    def time(self) -> float:
        return self._manual.monotonic()


def run(scenario: Coroutine[Any, Any, None], clock: ManualClock) -> None:
    """Run a coroutine to its end in such a loop."""
    with asyncio.Runner(loop_factory=lambda: ManualClockLoop(clock)) as runner:
        runner.run(scenario)


async def _join_and_delay_loop(coordinator: GroupCoordinator, clock: ManualClock) -> ConsumerHeartbeat:
    """Join, then delay the loop longer than the session timeout; return the next heartbeat."""
    response = await coordinator.consumers.heartbeat("g", _JOIN)
    clock.advance(2 * _SESSION_SECONDS)
    return ConsumerHeartbeat(member_id="m", member_epoch=response.member_epoch)


def test_heartbeat_read_after_a_delay_of_the_loop_keeps_the_member(catalog: Catalog, ids: Ids) -> None:
    clock = ManualClock()

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids, _SETTINGS) as coordinator:
            heartbeat = await _join_and_delay_loop(coordinator, clock)
            for _ in range(2):  # uvloop runs due timers before it reads from sockets
                await asyncio.sleep(0)
            await coordinator.consumers.heartbeat("g", heartbeat)

    run(scenario(), clock)


def test_member_without_heartbeat_is_fenced_after_the_delay(catalog: Catalog, ids: Ids) -> None:
    """Its session is extended once, by the delay of the loop."""
    clock = ManualClock()

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids, _SETTINGS) as coordinator:
            heartbeat = await _join_and_delay_loop(coordinator, clock)
            (group,) = coordinator.cache.groups()
            for is_fenced in (False, True):
                for _ in range(3):
                    await asyncio.sleep(0)
                assert group.is_empty is is_fenced
                clock.advance(_SESSION_SECONDS)
            with pytest.raises(GroupError) as refused:
                await coordinator.consumers.heartbeat("g", heartbeat)
            assert refused.value.code is ErrorCode.unknown_member_id

    run(scenario(), clock)


@pytest.mark.parametrize(("delay_seconds", "grace_seconds"), [(2, 2), (5, 5), (60, 6), (7_200, 6)])
def test_extension_is_limited_to_the_shortest_session_timeout(
    catalog: Catalog, ids: Ids, delay_seconds: int, grace_seconds: int
) -> None:
    clock = ManualClock()

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids, _SETTINGS) as coordinator:
            await coordinator.consumers.heartbeat("g", _JOIN)
            (group,) = coordinator.cache.groups()
            clock.advance(_SESSION_SECONDS + delay_seconds)
            for seconds, is_fenced in ((0, False), (grace_seconds - 0.01, False), (0.02, True)):
                clock.advance(seconds)
                for _ in range(3):
                    await asyncio.sleep(0)
                assert group.is_empty is is_fenced

    run(scenario(), clock)
