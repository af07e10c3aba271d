"""The time of an outage of the catalog does not count against the members of groups."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from agent.group_settings import GroupSettings
from agent.groups.classic.messages import JoinRequest, MemberProtocol
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, ConsumerHeartbeat
from agent.groups.errors import ErrorCode, GroupError
from agent.runtime.health import CallHealth
from core.clock import ManualClock
from core.errors import RetryableError
from tests.agent.groups.coordinators import open_coordinator
from tests.agent.groups.test_delayed_event_loop import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from agent.groups.coordinator import GroupCoordinator
    from agent.groups.interfaces import GroupTable
    from catalog.groups.repository import GroupRecord
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


class LostResponses:
    """The groups of a catalog, whose next write succeeds without a response."""

    def __init__(self, groups: GroupTable) -> None:
        self.claim, self.delete, self.page = groups.claim, groups.delete, groups.page
        self._groups = groups
        self.loses_next = True

    def save(self, claim_id: UUID, record: GroupRecord, /) -> bool:
        is_kept = self._groups.save(claim_id, record)
        if self.loses_next:
            self.loses_next = False
            raise RetryableError("the server failed over", remedy="retry")
        return is_kept


def test_a_static_member_repeats_a_join_that_was_stored_without_a_response(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> None:
    """UNRELEASED_INSTANCE_ID would be fatal to it. Another member with its instance id still gets it."""
    catalog.topics.create("granite", 2, {})
    join = ConsumerHeartbeat(
        member_id="m",
        member_epoch=0,
        instance_id="i",
        rebalance_timeout_ms=1_000,
        topics=frozenset({"granite"}),
        owned=EMPTY_ASSIGNMENT,
    )

    async def scenario() -> None:
        groups = LostResponses(catalog.groups)
        async with open_coordinator(catalog, clock, ids, _SETTINGS, groups=groups) as coordinator:
            with pytest.raises(GroupError) as lost:
                await coordinator.consumers.heartbeat("g", join)
            repeated = await coordinator.consumers.heartbeat("g", join)
            with pytest.raises(GroupError) as other:
                await coordinator.consumers.heartbeat("g", replace(join, member_id="other"))
        assert lost.value.code is ErrorCode.coordinator_not_available
        assert (repeated.member_epoch, len(repeated.assignment or ())) == (1, 2)
        assert other.value.code is ErrorCode.unreleased_instance_id

    asyncio.run(scenario())
