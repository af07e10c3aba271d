"""Eviction: at `max_groups`, groups without members are evicted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.group_settings import GroupSettings
from agent.groups.classic.messages import JoinRequest, MemberIdentity
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, ConsumerHeartbeat
from agent.groups.errors import ErrorCode, GroupError
from tests.agent.groups.classic_harness import RANGE
from tests.agent.groups.coordinators import open_coordinator

if TYPE_CHECKING:
    from agent.groups.coordinator import GroupCoordinator
    from catalog.open import Catalog
    from core.clock import ManualClock
    from core.ids import Ids

_MAX_GROUPS = 3
_SETTINGS = GroupSettings(max_groups=_MAX_GROUPS)


async def _join(coordinator: GroupCoordinator, group_id: str, member_id: str = "") -> tuple[ErrorCode, str]:
    """Send a JoinGroup; return its error code and member id. The id stays valid for half an hour."""
    response = await coordinator.join(
        group_id,
        JoinRequest(
            member_id=member_id,
            instance_id=None,
            protocol_type="consumer",
            protocols=(RANGE,),
            session_timeout_ms=1_800_000,
            rebalance_timeout_ms=60_000,
            client_id="client",
            client_host="127.0.0.1",
            requires_known_member_id=True,
            supports_skipping_assignment=True,
        ),
    )
    return response.error, response.member_id


async def _heartbeat(coordinator: GroupCoordinator, group_id: str, epoch: int = 0) -> int:
    """Send a heartbeat of the only member, which joins with epoch 0; return the member epoch."""
    joins = {"rebalance_timeout_ms": 1_000, "topics": frozenset({"granite"}), "owned": EMPTY_ASSIGNMENT}
    request = ConsumerHeartbeat(member_id="m", member_epoch=epoch, **(joins if epoch == 0 else {}))  # type: ignore[arg-type]  # as the keys say
    return (await coordinator.consumers.heartbeat(group_id, request)).member_epoch


def test_least_recently_used_group_without_members_is_evicted(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> None:
    """A client of an evicted group gets another member id."""

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids, _SETTINGS) as coordinator:
            first = await _join(coordinator, "g0")
            assert first[0] is ErrorCode.member_id_required
            for number in range(1, 2 * _MAX_GROUPS):
                error, _ = await _join(coordinator, f"g{number}")
                assert error is ErrorCode.member_id_required
            assert {each.group_id for each in coordinator.cache.groups()} == {"g3", "g4", "g5"}
            await coordinator.offsets.commit("g3", MemberIdentity(), [])
            await _join(coordinator, "g6")
            assert {each.group_id for each in coordinator.cache.groups()} == {"g3", "g5", "g6"}
            assert await _join(coordinator, "g0", first[1]) == (ErrorCode.unknown_member_id, first[1])
            assert (await _join(coordinator, "g0"))[0] is ErrorCode.member_id_required

    asyncio.run(scenario())


def test_groups_with_members_are_not_evicted(catalog: Catalog, clock: ManualClock, ids: Ids) -> None:
    """If all groups have members, a new group is refused."""

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids, _SETTINGS) as coordinator:
            epochs = [await _heartbeat(coordinator, f"g{number}") for number in range(_MAX_GROUPS)]
            with pytest.raises(GroupError) as refused:
                await _heartbeat(coordinator, "other")
            assert refused.value.code is ErrorCode.coordinator_not_available
            await _heartbeat(coordinator, "g1", epoch=-1)
            assert await _heartbeat(coordinator, "other") == epochs[0]
            assert {each.group_id for each in coordinator.cache.groups()} == {"g0", "g2", "other"}
            for group_id, epoch in (("g0", epochs[0]), ("g2", epochs[2])):
                assert await _heartbeat(coordinator, group_id, epoch) == epoch

    asyncio.run(scenario())
