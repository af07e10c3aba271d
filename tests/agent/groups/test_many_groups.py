"""More groups than an agent holds in memory: those without members make room, the others stay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.group_settings import GroupSettings
from agent.groups.classic.messages import JoinRequest, MemberIdentity
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, ConsumerHeartbeat
from agent.groups.errors import ErrorCode, GroupError
from tests.agent.groups.coordinators import coordinating
from tests.agent.groups.stage import RANGE

if TYPE_CHECKING:
    from agent.groups.coordinator import GroupCoordinator
    from catalog.open import Catalog
    from core.clock import ManualClock
    from core.ids import Ids

_MOST = 3
_SETTINGS = GroupSettings(max_groups=_MOST)


async def _ask_to_join(
    coordinator: GroupCoordinator, group_id: str, member_id: str = ""
) -> tuple[ErrorCode, str]:
    """Of a new member: it is given an id, and the group waits for it half an hour."""
    answer = await coordinator.join(
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
    return answer.error, answer.member_id


async def _beat(coordinator: GroupCoordinator, group_id: str, epoch: int = 0) -> int:
    """A heartbeat of the group's only member, which joins in epoch 0; its epoch."""
    joins = {"rebalance_timeout_ms": 1_000, "topics": frozenset({"granite"}), "owned": EMPTY_ASSIGNMENT}
    request = ConsumerHeartbeat(member_id="m", member_epoch=epoch, **(joins if epoch == 0 else {}))  # type: ignore[arg-type]  # as the keys say
    return (await coordinator.consumers.heartbeat(group_id, request)).member_epoch


def test_groups_that_nobody_came_to_keep_no_others_out(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> None:
    """What goes first was asked for longest ago; whoever comes back to it then is given another id."""

    async def story() -> None:
        async with coordinating(catalog, clock, ids, _SETTINGS) as coordinator:
            first = await _ask_to_join(coordinator, "g0")
            assert first[0] is ErrorCode.member_id_required
            for number in range(1, 2 * _MOST):
                error, _ = await _ask_to_join(coordinator, f"g{number}")
                assert error is ErrorCode.member_id_required
            assert {each.group_id for each in coordinator.cache.groups()} == {"g3", "g4", "g5"}
            await coordinator.offsets.commit("g3", MemberIdentity(), [])
            await _ask_to_join(coordinator, "g6")
            assert {each.group_id for each in coordinator.cache.groups()} == {"g3", "g5", "g6"}
            assert await _ask_to_join(coordinator, "g0", first[1]) == (ErrorCode.unknown_member_id, first[1])
            assert (await _ask_to_join(coordinator, "g0"))[0] is ErrorCode.member_id_required

    asyncio.run(story())


def test_groups_with_members_stay(catalog: Catalog, clock: ManualClock, ids: Ids) -> None:
    """When all have some, others are refused until one has none."""

    async def story() -> None:
        async with coordinating(catalog, clock, ids, _SETTINGS) as coordinator:
            epochs = [await _beat(coordinator, f"g{number}") for number in range(_MOST)]
            with pytest.raises(GroupError) as refused:
                await _beat(coordinator, "other")
            assert refused.value.code is ErrorCode.coordinator_not_available
            await _beat(coordinator, "g1", epoch=-1)
            assert await _beat(coordinator, "other") == epochs[0]
            assert {each.group_id for each in coordinator.cache.groups()} == {"g0", "g2", "other"}
            for group_id, epoch in (("g0", epochs[0]), ("g2", epochs[2])):
                assert await _beat(coordinator, group_id, epoch) == epoch

    asyncio.run(story())
