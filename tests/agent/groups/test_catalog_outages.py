"""The time of an outage of the catalog does not count against the members of groups."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.group_settings import GroupSettings
from agent.groups.classic.messages import JoinRequest, MemberProtocol
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, ConsumerHeartbeat
from agent.runtime.health import CallHealth
from core.clock import ManualClock
from tests.agent.groups.coordinators import open_coordinator
from tests.agent.groups.test_delayed_event_loop import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.groups.coordinator import GroupCoordinator
    from catalog.open import Catalog
    from core.ids import Ids

_SESSION_SECONDS = 45
_SETTINGS = GroupSettings(
    group_consumer_session_timeout_ms=1000 * _SESSION_SECONDS, group_initial_rebalance_delay_ms=0
)


async def _join_classic(coordinator: GroupCoordinator) -> None:
    request = JoinRequest(
        member_id="",
        instance_id="static",
        client_id="c",
        client_host="h",
        session_timeout_ms=1000 * _SESSION_SECONDS,
        rebalance_timeout_ms=1000 * _SESSION_SECONDS,
        protocol_type="consumer",
        protocols=(MemberProtocol("range", b""),),
        requires_known_member_id=False,
    )
    response = await coordinator.join("g", request)
    assert response.generation == 1


async def _join_consumer(coordinator: GroupCoordinator) -> None:
    heartbeat = ConsumerHeartbeat(
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        topics=frozenset({"granite"}),
        owned=EMPTY_ASSIGNMENT,
    )
    await coordinator.consumers.heartbeat("g", heartbeat)


@pytest.mark.parametrize("join", [_join_classic, _join_consumer])
def test_no_session_ends_in_an_outage_and_each_continues_afterwards(
    catalog: Catalog, ids: Ids, join: Callable[[GroupCoordinator], Awaitable[None]]
) -> None:
    clock = ManualClock()
    health = CallHealth(clock, limit_seconds=4)

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids, _SETTINGS, catalog_health=health) as coordinator:
            await join(coordinator)
            coordinator.cache.start()
            (group,) = coordinator.cache.groups()

            async def let_pass(seconds: int, *, is_out: bool) -> None:
                for _ in range(4 * seconds):
                    clock.advance(0.25)
                    if not is_out:
                        health.succeeded()
                    for _ in range(5):
                        await asyncio.sleep(0)

            await let_pass(10, is_out=False)
            await let_pass(1000, is_out=True)
            assert group.member_count == 1
            await let_pass(_SESSION_SECONDS - 12, is_out=False)
            assert group.member_count == 1
            await let_pass(4, is_out=False)
            assert group.member_count == 0

    run(scenario(), clock)
