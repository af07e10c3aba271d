"""Groups of the classic protocol: dynamic and static members, generations, and commits of members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.codec import Struct
from tests.kafka_differences.session import code

if TYPE_CHECKING:
    from tests.kafka_differences.session import Session


def dynamic_members(s: Session) -> None:
    """One member joins, syncs, commits, joins again and leaves."""
    topic, group = "classic", "classic"
    s.create_topic(topic)
    _join(s, "join, empty group name", "")
    _join(s, "join, short session", group, session_timeout=1)
    _join(s, "join, long session", group, session_timeout=2**31 - 1)
    _join(s, "join, no protocol", group, protocols=())
    _join(s, "join, no protocol type", group, protocol_type="")
    _join(s, "join, unknown member", group, "unknown")
    _heartbeat(s, "heartbeat, unknown group", "unknown", 1, "m")
    _heartbeat(s, "heartbeat, empty group name", "", 1, "m")
    _sync(s, "sync, unknown group", "unknown", 1, "m")

    member = _join(s, "join without an id", group).member_id
    generation = _join(s, "join", group, member).generation_id
    _heartbeat(s, "heartbeat before the sync", group, generation, member)
    s.commit("commit before the sync", group, topic, 3, epoch=generation, member=member)
    _sync(s, "sync, other generation", group, 9, member)
    _sync(s, "sync, unknown member", group, generation, "unknown")
    _sync(s, "sync, other protocol", group, generation, member, protocol="roundrobin")
    _sync(s, "sync, other protocol type", group, generation, member, protocol_type="connect")
    _sync(s, "sync", group, generation, member, assignment=b"abc")
    _sync(s, "sync again", group, generation, member, assignment=b"other")
    _heartbeat(s, "heartbeat", group, generation, member)
    _heartbeat(s, "heartbeat, later generation", group, generation + 1, member)
    _heartbeat(s, "heartbeat, unknown member", group, generation, "unknown")
    _heartbeat(s, "heartbeat, unknown instance", group, generation, member, instance="i")
    s.commit("commit", group, topic, 3, epoch=generation, member=member)
    s.commit("commit, earlier generation", group, topic, 4, epoch=generation - 1, member=member)
    s.commit("commit, no member", group, topic, 4)
    s.commit("commit, no generation", group, topic, 4, member=member)
    s.commit("commit, no member id", group, topic, 4, epoch=generation)
    s.commit("commit, unknown instance", group, topic, 4, epoch=generation, member=member, instance="i")
    s.committed("committed", group, topic)
    _join(s, "join, incompatible protocol", group, protocols=("other",))
    _join(s, "join, other protocol type", group, protocol_type="connect")
    _describe(s, "describe, stable", group)
    s.codes("delete a group with a member", "delete_groups", 2, groups_names=[group])

    generation = _join(s, "join again", group, member).generation_id
    _sync(s, "sync the next generation", group, generation, member, assignment=b"abcd")
    _leave(s, "leave, unknown member", group, "unknown")
    _leave(s, "leave, unknown group", "unknown", "unknown")
    _leave(s, "leave, unknown instance", group, "", instance="i")
    _leave(s, "leave", group, member)
    _leave(s, "leave again", group, member)
    _heartbeat(s, "heartbeat after leaving", group, generation, member)
    _describe(s, "describe, empty", group)
    s.commit("commit after leaving", group, topic, 5, epoch=generation, member=member)
    s.commit("commit to an empty group", group, topic, 5)
    _join(s, "join in version 3 without an id", "classic-3", version=3)


def static_members(s: Session) -> None:
    """A static member is replaced by another one of its instance."""
    topic, group = "static", "static"
    s.create_topic(topic)
    first = _join(s, "join", group, instance="i")
    generation = first.generation_id
    _sync(s, "sync", group, generation, first.member_id, instance="i", assignment=b"a")
    second = _join(s, "join again in version 5", group, instance="i").member_id
    _heartbeat(s, "heartbeat of the replaced", group, generation, first.member_id, instance="i")
    _sync(s, "sync of the second", group, generation, second, instance="i")
    third = _join(s, "join again in version 9", group, instance="i", version=9).member_id
    _join(s, "join, other member id", group, "unknown", instance="i")
    _join(s, "join, other instance", group, third, instance="other")
    s.commit("commit of the replaced", group, topic, 1, epoch=generation, member=second, instance="i")
    s.commit("commit", group, topic, 1, epoch=generation, member=third, instance="i")
    _leave(s, "leave, replaced", group, second, instance="i")
    _leave(s, "leave", group, "", instance="i")


def _join(  # one for each field of the request
    s: Session,
    step: str,
    group: str,
    member: str = "",
    *,
    version: int = 5,
    instance: str | None = None,
    session_timeout: int = 60_000,
    protocol_type: str = "consumer",
    protocols: tuple[str, ...] = ("range",),
) -> Struct:
    """Join a group: code, generation, protocol, whether the member leads, number of listed members."""
    response = s.ask(
        "join_group",
        version,
        group_id=group,
        session_timeout=session_timeout,
        rebalance_timeout=60_000,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[Struct(name=name, metadata=b"\0\0") for name in protocols],
    )
    s.saw(
        step,
        {
            "code": code(response.error_code),
            "generation": response.generation_id,
            "protocol": response.protocol_name,
            "leads": bool(response.member_id) and response.leader == response.member_id,
            "has an id": bool(response.member_id),
            "members": len(response.members),
            "skips the assignment": response.skip_assignment,
        },
    )
    return response


def _sync(  # one for each field of the request
    s: Session,
    step: str,
    group: str,
    generation: int,
    member: str,
    *,
    instance: str | None = None,
    protocol_type: str = "consumer",
    protocol: str = "range",
    assignment: bytes | None = None,
) -> None:
    """Synchronize a member, with its own assignment if it is the leader: code, protocol, assignment."""
    assigned = [] if assignment is None else [Struct(member_id=member, assignment=assignment)]
    response = s.ask(
        "sync_group",
        5,
        group_id=group,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocol_name=protocol,
        assignments=assigned,
    )
    s.saw(step, (code(response.error_code), response.protocol_name, bytes(response.assignment)))


def _heartbeat(
    s: Session, step: str, group: str, generation: int, member: str, *, instance: str | None = None
) -> None:
    """Send the heartbeat of a member."""
    s.codes(
        step,
        "heartbeat",
        4,
        group_id=group,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
    )


def _leave(s: Session, step: str, group: str, member: str, *, instance: str | None = None) -> None:
    """Remove a member from a group."""
    leaving = Struct(member_id=member, group_instance_id=instance)
    s.codes(step, "leave_group", 4, group_id=group, members=[leaving])


def _describe(s: Session, step: str, group: str) -> None:
    """Describe a group: code, state, protocol, assignments."""
    (described,) = s.ask("describe_groups", 5, groups=[group]).groups
    assignments = [bytes(each.member_assignment) for each in described.members]
    s.saw(step, (code(described.error_code), described.group_state, described.protocol_data, assignments))
