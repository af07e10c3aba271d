"""The bytes that a group counts with, and the limits of one group and of all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from agent.group_settings import GroupSettings
from agent.groups.classic.member import ClassicMember
from agent.groups.classic.members import ClassicMembers
from agent.groups.classic.messages import (
    ClassicGroupState,
    JoinRequest,
    JoinResponse,
    MemberProtocol,
    SyncRequest,
)
from agent.groups.consumer.member import ConsumerMember
from agent.groups.consumer.members import ConsumerMembers
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, ConsumerHeartbeat
from agent.groups.errors import ErrorCode, GroupError
from agent.groups.memory import GroupMemory
from tests.agent.groups.coordinators import open_coordinator

if TYPE_CHECKING:
    from agent.groups.coordinator import GroupCoordinator
    from catalog.open import Catalog
    from core.clock import ManualClock
    from core.ids import Ids

_JOIN = JoinRequest(
    protocol_type="consumer",
    protocols=(MemberProtocol(name="range", metadata=b"x" * 100),),
    session_timeout_ms=1,
    rebalance_timeout_ms=1,
    instance_id="i",
)


def test_a_classic_group_counts_with_its_members() -> None:
    members = ClassicMembers()
    members.add_pending("m")
    pending = members.memory_bytes
    member = ClassicMember.from_join("m", _JOIN)
    members.add(member)
    joined = members.memory_bytes
    member.assignment = b"y" * 50
    members.update_size(member)
    assigned = members.memory_bytes
    members.replace("m", member.with_member_id("n"))
    replaced = members.memory_bytes
    members.remove("n")
    assert 0 < pending < joined
    assert assigned == joined + 50 == replaced
    assert members.memory_bytes == 0


def test_a_consumer_group_counts_with_its_members() -> None:
    members = ConsumerMembers()
    member = ConsumerMember(member_id="m", topics=frozenset({"t" * 100}))
    members.put(member)
    first = members.memory_bytes
    members.put(replace(member, topics=frozenset()))
    second = members.memory_bytes
    members.remove("m")
    assert first > second + 100
    assert members.memory_bytes == 0


def test_a_group_that_is_full_takes_no_more_bytes_and_other_groups_do() -> None:
    memory = GroupMemory(GroupSettings(group_max_bytes=100, groups_max_bytes=150))
    held = memory.update(0, 100)
    memory.admit(held, 0)
    with pytest.raises(GroupError) as full:
        memory.admit(held, 1)
    memory.admit(0, 50)
    other = memory.update(0, 60)
    memory.admit(other, 0)  # even beyond the limit of all
    with pytest.raises(GroupError) as all_full:
        memory.admit(other, 1)
    memory.update(held, 0)
    memory.admit(other, 1)
    assert full.value.code is ErrorCode.group_max_size_reached
    assert all_full.value.code is ErrorCode.coordinator_not_available


def test_all_texts_of_a_member_count() -> None:
    """Clients choose them, up to the size of a request."""
    text = "x" * 1000
    classic = ClassicMember.from_join("m", _JOIN)
    longer = ClassicMember.from_join("m", replace(_JOIN, client_id=text, client_host=text, instance_id=text))
    assert longer.memory_bytes >= classic.memory_bytes + 3 * len(text) - len("i")
    member = ConsumerMember(member_id="m")
    for field in ("client_id", "client_host", "instance_id", "rack_id"):
        longer_member = replace(member, **{field: text})  # type: ignore[arg-type]  # a text
        assert longer_member.memory_bytes >= member.memory_bytes + len(text)


def _heartbeat(member_id: str, **fields: str) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        topics=frozenset(),
        owned=EMPTY_ASSIGNMENT,
        **fields,  # type: ignore[arg-type]  # texts
    )


@pytest.mark.parametrize("field", ["member_id", "instance_id", "rack_id", "client_id"])
def test_a_member_that_subscribes_to_nothing_is_refused_for_its_other_texts(
    catalog: Catalog, clock: ManualClock, ids: Ids, field: str
) -> None:
    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids, GroupSettings(group_max_bytes=100_000)) as groups:
            with pytest.raises(GroupError) as full:
                await groups.consumers.heartbeat("g", _heartbeat(**{"member_id": "m", field: "x" * 100_000}))
            assert full.value.code is ErrorCode.group_max_size_reached

    asyncio.run(scenario())


def test_members_that_subscribe_to_nothing_fill_a_group_and_a_static_one_may_restart(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> None:
    async def join_until_refused(groups: GroupCoordinator) -> None:
        for number in range(20):
            await groups.consumers.heartbeat("g", _heartbeat(f"m{number}"))

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids, GroupSettings(group_max_bytes=20_000)) as groups:
            static = _heartbeat("static", instance_id="i")
            await groups.consumers.heartbeat("g", static)
            with pytest.raises(GroupError) as full:
                await join_until_refused(groups)
            assert full.value.code is ErrorCode.group_max_size_reached
            with pytest.raises(GroupError) as unknown:
                await groups.consumers.heartbeat("g", ConsumerHeartbeat(member_id="fenced", member_epoch=1))
            assert unknown.value.code is ErrorCode.unknown_member_id
            left = replace(static, member_epoch=-2, topics=None, owned=None, rebalance_timeout_ms=-1)
            await groups.consumers.heartbeat("g", left)
            await groups.consumers.heartbeat("g", replace(static, member_id="other"))

    asyncio.run(scenario())


def _join(**fields: str) -> JoinRequest:
    return replace(_JOIN, session_timeout_ms=60_000, requires_known_member_id=False, **fields)  # type: ignore[arg-type]  # texts


@pytest.mark.parametrize("field", ["instance_id", "client_id"])
def test_a_classic_member_is_refused_for_its_long_texts(
    catalog: Catalog, clock: ManualClock, ids: Ids, field: str
) -> None:
    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids, GroupSettings(group_max_bytes=100_000)) as groups:
            with pytest.raises(GroupError) as full:
                async with asyncio.timeout(10):
                    await groups.join("g", _join(**{field: "x" * 100_000}))
            assert full.value.code is ErrorCode.group_max_size_reached

    asyncio.run(scenario())


def test_a_protocol_type_that_is_longer_than_a_text_of_kafka_is_refused(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> None:
    """The group keeps it, and it belongs to no member."""

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids) as groups:
            with pytest.raises(GroupError) as refused:
                async with asyncio.timeout(10):
                    await groups.join("g", _join(protocol_type="x" * 2**15))
            assert refused.value.code is ErrorCode.inconsistent_group_protocol

    asyncio.run(scenario())


def test_new_assignments_take_the_place_of_the_earlier_ones(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> None:
    """A group whose assignments take more than half of its memory still works after a rebalance."""
    settings = GroupSettings(group_max_bytes=10_000, group_initial_rebalance_delay_ms=0)

    def dynamic(member_id: str = "", size: int = 100) -> JoinRequest:
        protocols = (MemberProtocol(name="range", metadata=bytes(size)),)
        request = replace(_join(member_id=member_id), instance_id=None, protocols=protocols)
        return replace(request, rebalance_timeout_ms=60_000)

    async def sync(groups: GroupCoordinator, member: JoinResponse, *sizes: tuple[str, int]) -> ErrorCode:
        assignments = {member_id: bytes(size) for member_id, size in sizes}
        request = SyncRequest(
            member_id=member.member_id,
            instance_id=None,
            generation=member.generation,
            assignments=assignments,
        )
        return (await groups.sync("g", request)).error

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids, settings) as groups:
            leader, other = await groups.join("g", dynamic()), JoinResponse()
            assert await sync(groups, leader, (leader.member_id, 1)) is ErrorCode.none
            group = groups.cache.get("g")
            assert group is not None

            async def is_rebalancing() -> bool:
                await asyncio.sleep(0)
                return group.state is ClassicGroupState.PREPARING_REBALANCE

            for number in range(3):
                joining = asyncio.ensure_future(groups.join("g", dynamic(other.member_id, number)))
                while not await is_rebalancing():
                    pass
                leader = await groups.join("g", dynamic(leader.member_id))
                other = await joining
                assert await sync(groups, leader, (other.member_id, 6_000)) is ErrorCode.none
                assert await sync(groups, other) is ErrorCode.none

    asyncio.run(scenario())
