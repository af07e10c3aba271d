"""An event loop that was held up: members are not counted as silent for what the agent itself missed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from agent.group_settings import GroupSettings
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, ConsumerHeartbeat
from agent.groups.errors import ErrorCode, GroupError
from core.clock import ManualClock
from tests.agent.groups.coordinators import coordinating

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


class LoopOnClock(asyncio.SelectorEventLoop):
    """A loop whose timers are due when the clock says so: to move the clock by much is to hold it up."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._manual = clock

    @override
    def time(self) -> float:
        return self._manual.monotonic()


def run(story: Coroutine[Any, Any, None], clock: ManualClock) -> None:
    """Run it to its end in such a loop."""
    with asyncio.Runner(loop_factory=lambda: LoopOnClock(clock)) as runner:
        runner.run(story)


async def _join_and_hold_the_loop_up(coordinator: GroupCoordinator, clock: ManualClock) -> ConsumerHeartbeat:
    """A member joins, then the loop does nothing for longer than its session; gives its next heartbeat."""
    answer = await coordinator.consumers.heartbeat("g", _JOIN)
    clock.advance(2 * _SESSION_SECONDS)
    return ConsumerHeartbeat(member_id="m", member_epoch=answer.member_epoch)


def test_a_heartbeat_that_nobody_could_read_in_time_keeps_its_member(catalog: Catalog, ids: Ids) -> None:
    clock = ManualClock()

    async def story() -> None:
        async with coordinating(catalog, clock, ids, _SETTINGS) as coordinator:
            again = await _join_and_hold_the_loop_up(coordinator, clock)
            for _ in range(2):  # uvloop calls timers that are due before it reads from sockets
                await asyncio.sleep(0)
            await coordinator.consumers.heartbeat("g", again)

    run(story(), clock)


def test_a_member_that_stays_silent_is_out_nevertheless(catalog: Catalog, ids: Ids) -> None:
    """Its time is prolonged once, by as long as the loop was late."""
    clock = ManualClock()

    async def story() -> None:
        async with coordinating(catalog, clock, ids, _SETTINGS) as coordinator:
            again = await _join_and_hold_the_loop_up(coordinator, clock)
            (group,) = coordinator.cache.groups()
            for is_out in (False, True):
                for _ in range(3):
                    await asyncio.sleep(0)
                assert group.is_empty is is_out
                clock.advance(_SESSION_SECONDS)
            with pytest.raises(GroupError) as refused:
                await coordinator.consumers.heartbeat("g", again)
            assert refused.value.code is ErrorCode.unknown_member_id

    run(story(), clock)


@pytest.mark.parametrize(("late_seconds", "grace_seconds"), [(2, 2), (5, 5), (60, 6), (7_200, 6)])
def test_a_loop_that_was_held_up_for_long_gives_members_six_seconds(
    catalog: Catalog, ids: Ids, late_seconds: int, grace_seconds: int
) -> None:
    """However late it is, who stays silent is out after that."""
    clock = ManualClock()

    async def story() -> None:
        async with coordinating(catalog, clock, ids, _SETTINGS) as coordinator:
            await coordinator.consumers.heartbeat("g", _JOIN)
            (group,) = coordinator.cache.groups()
            clock.advance(_SESSION_SECONDS + late_seconds)
            for seconds, is_out in ((0, False), (grace_seconds - 0.01, False), (0.02, True)):
                clock.advance(seconds)
                for _ in range(3):
                    await asyncio.sleep(0)
                assert group.is_empty is is_out

    run(story(), clock)
