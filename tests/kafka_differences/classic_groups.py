"""Groups of the classic protocol: dynamic and static members, generations, and commits of members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.kafka.codec import Struct
from tests.agent.kafka.waiting import until
from tests.kafka_differences.session import code

if TYPE_CHECKING:
    from tests.kafka_differences.session import Session


def dynamic_members(s: Session) -> None:
    """One member joins, syncs, commits, joins again and leaves."""
    topic, group = "classic", "classic"
    s.create_topic(topic)
    join(s, "join, empty group name", "")
    join(s, "join, short session", group, session_timeout=1)
    join(s, "join, long session", group, session_timeout=2**31 - 1)
    join(s, "join, no protocol", group, protocols=())
    join(s, "join, no protocol type", group, protocol_type="")
    join(s, "join, unknown member", group, "unknown")
    heartbeat(s, "heartbeat, unknown group", "unknown", 1, "m")
    heartbeat(s, "heartbeat, empty group name", "", 1, "m")
    sync(s, "sync, unknown group", "unknown", 1, "m")

    member = join(s, "join without an id", group).member_id
    generation = join(s, "join", group, member).generation_id
    heartbeat(s, "heartbeat before the sync", group, generation, member)
    s.commit("commit before the sync", group, topic, 3, epoch=generation, member=member)
    sync(s, "sync, other generation", group, 9, member)
    sync(s, "sync, unknown member", group, generation, "unknown")
    sync(s, "sync, other protocol", group, generation, member, protocol="roundrobin")
    sync(s, "sync, other protocol type", group, generation, member, protocol_type="connect")
    sync(s, "sync", group, generation, member, assignment=b"abc")
    sync(s, "sync again", group, generation, member, assignment=b"other")
    heartbeat(s, "heartbeat", group, generation, member)
    heartbeat(s, "heartbeat, later generation", group, generation + 1, member)
    heartbeat(s, "heartbeat, unknown member", group, generation, "unknown")
    heartbeat(s, "heartbeat, unknown instance", group, generation, member, instance="i")
    s.commit("commit", group, topic, 3, epoch=generation, member=member)
    s.commit("commit, earlier generation", group, topic, 4, epoch=generation - 1, member=member)
    s.commit("commit, no member", group, topic, 4)
    s.commit("commit, no generation", group, topic, 4, member=member)
    s.commit("commit, no member id", group, topic, 4, epoch=generation)
    s.commit("commit, unknown instance", group, topic, 4, epoch=generation, member=member, instance="i")
    s.committed("committed", group, topic)
    join(s, "join, incompatible protocol", group, protocols=("other",))
    join(s, "join, other protocol type", group, protocol_type="connect")
    _describe(s, "describe, stable", group)
    s.codes("delete a group with a member", "delete_groups", 2, groups_names=[group])

    generation = join(s, "join again", group, member).generation_id
    sync(s, "sync the next generation", group, generation, member, assignment=b"abcd")
    _leave(s, "leave, unknown member", group, "unknown")
    _leave(s, "leave, unknown group", "unknown", "unknown")
    _leave(s, "leave, unknown instance", group, "", instance="i")
    _leave(s, "leave", group, member)
    _leave(s, "leave again", group, member)
    heartbeat(s, "heartbeat after leaving", group, generation, member)
    _describe(s, "describe, empty", group)
    s.commit("commit after leaving", group, topic, 5, epoch=generation, member=member)
    s.commit("commit to an empty group", group, topic, 5)
    join(s, "join in version 3 without an id", "classic-3", version=3)


def static_members(s: Session) -> None:
    """A static member is replaced by another one of its instance."""
    topic, group = "static", "static"
    s.create_topic(topic)
    first = join(s, "join", group, instance="i")
    generation = first.generation_id
    sync(s, "sync", group, generation, first.member_id, instance="i", assignment=b"a")
    second = join(s, "join again in version 5", group, instance="i").member_id
    heartbeat(s, "heartbeat of the replaced", group, generation, first.member_id, instance="i")
    sync(s, "sync of the second", group, generation, second, instance="i")
    third = join(s, "join again in version 9", group, instance="i", version=9).member_id
    join(s, "join, other member id", group, "unknown", instance="i")
    join(s, "join, other instance", group, third, instance="other")
    s.commit("commit of the replaced", group, topic, 1, epoch=generation, member=second, instance="i")
    s.commit("commit", group, topic, 1, epoch=generation, member=third, instance="i")
    _leave(s, "leave, replaced", group, second, instance="i")
    _leave(s, "leave", group, "", instance="i")


def two_members(s: Session) -> None:
    """A second member joins, and the leader assigns partitions to both."""
    topic, group = "rebalance", "rebalance"
    s.create_topic(topic, 2)
    first = join(s, "first without an id", group).member_id
    join(s, "first", group, first)
    sync(s, "first syncs", group, 1, first, assignment=b"everything")
    second = join(s, "second without an id", group).member_id
    second_joins = s.begin("join_group", 5, **_joining(group, second))
    until(lambda: not _is_stable(s, group, 1, first))
    heartbeat(s, "heartbeat while the second joins", group, 1, first)
    sync(s, "sync while the second joins", group, 1, first)
    s.commit("commit while the second joins", group, topic, 1, epoch=1, member=first)
    _describe(s, "describe while the second joins", group)
    join(s, "first joins again", group, first)
    _saw_join(s, "second", second_joins())
    s.commit("commit before the sync", group, topic, 2, epoch=2, member=first)
    second_syncs = s.begin("sync_group", 5, **_syncing(group, 2, second))
    assignments = [
        Struct(member_id=first, assignment=b"to the first"),
        Struct(member_id=second, assignment=b"to the second"),
    ]
    request = {**_syncing(group, 2, first), "assignments": assignments}
    _saw_sync(s, "leader syncs", s.ask("sync_group", 5, **request))
    _saw_sync(s, "follower syncs", second_syncs())
    heartbeat(s, "heartbeat of the follower", group, 2, second)
    join(s, "follower joins again unchanged", group, second)
    _leave(s, "leader leaves", group, first)
    heartbeat(s, "heartbeat after the leader left", group, 2, second)
    join(s, "follower joins", group, second)


def _joining(  # one for each field of the request
    group: str,
    member: str,
    *,
    instance: str | None = None,
    session_timeout: int = 60_000,
    protocol_type: str = "consumer",
    protocols: tuple[str, ...] = ("range",),
    subscription: bytes = b"\0\0",
) -> dict[str, Any]:
    """Return the fields of a JoinGroup request."""
    return {
        "group_id": group,
        "session_timeout": session_timeout,
        "rebalance_timeout": 600_000,
        "member_id": member,
        "group_instance_id": instance,
        "protocol_type": protocol_type,
        "protocols": [Struct(name=name, metadata=subscription) for name in protocols],
    }


def join(
    s: Session,
    step: str,
    group: str,
    member: str = "",
    *,
    version: int = 5,
    **fields: Any,  # noqa: ANN401  # those of `_joining`
) -> Struct:
    """Join a group as a step."""
    response = s.ask("join_group", version, **_joining(group, member, **fields))
    _saw_join(s, step, response)
    return response


def _saw_join(s: Session, step: str, response: Struct) -> None:
    s.saw(
        step,
        {
            "code": code(response.error_code),
            "generation": response.generation_id,
            "protocol": response.protocol_name,
            "leads": bool(response.member_id) and response.leader == response.member_id,
            "has an id": bool(response.member_id),
            "listed members": len(response.members),
            "skips the assignment": response.skip_assignment,
        },
    )


def _syncing(  # one for each field of the request
    group: str,
    generation: int,
    member: str,
    *,
    instance: str | None = None,
    protocol_type: str = "consumer",
    protocol: str = "range",
    assignment: bytes | None = None,
) -> dict[str, Any]:
    """Return the fields of a SyncGroup request; with `assignment`, the leader assigns it to itself."""
    assigned = [] if assignment is None else [Struct(member_id=member, assignment=assignment)]
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": instance,
        "protocol_type": protocol_type,
        "protocol_name": protocol,
        "assignments": assigned,
    }


def sync(
    s: Session,
    step: str,
    group: str,
    generation: int,
    member: str,
    **fields: Any,  # noqa: ANN401  # those of `_syncing`
) -> None:
    """Synchronize a member as a step."""
    _saw_sync(s, step, s.ask("sync_group", 5, **_syncing(group, generation, member, **fields)))


def _saw_sync(s: Session, step: str, response: Struct) -> None:
    s.saw(step, (code(response.error_code), response.protocol_name, bytes(response.assignment)))


def _is_stable(s: Session, group: str, generation: int, member: str) -> bool:
    """Return False if the member should join again."""
    response = s.ask(
        "heartbeat", 4, group_id=group, generation_id=generation, member_id=member, group_instance_id=None
    )
    return code(response.error_code) != "REBALANCE_IN_PROGRESS"


def heartbeat(
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
    assignments = sorted(bytes(each.member_assignment) for each in described.members)
    s.saw(step, (code(described.error_code), described.group_state, described.protocol_data, assignments))
