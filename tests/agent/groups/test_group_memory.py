"""The bytes that a group counts with, and the limits of one group and of all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.group_settings import GroupSettings
from agent.groups.classic.member import ClassicMember
from agent.groups.classic.members import ClassicMembers
from agent.groups.classic.messages import JoinRequest, MemberProtocol
from agent.groups.consumer.member import ConsumerMember
from agent.groups.consumer.members import ConsumerMembers
from agent.groups.errors import ErrorCode, GroupError
from agent.groups.memory import GroupMemory

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
