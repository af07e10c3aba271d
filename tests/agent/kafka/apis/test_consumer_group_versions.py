"""Every version of the consumer group APIs, without a client library."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from agent.group_settings import MigrationPolicy
from agent.groups.classic.embedded_protocol import read_assignment
from agent.kafka.codec import Struct, message_versions
from agent.kafka.errors import ErrorCode
from tests.agent.groups.classic_harness import encode_subscription
from tests.agent.kafka.waiting import QUICK_GROUPS
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from catalog.model import Topic
    from tests.agent.kafka.brokers import BrokerThread

_VERSIONS = (0, 1)


@pytest.fixture
def broker(start_broker: Callable[..., BrokerThread]) -> BrokerThread:
    return start_broker(groups=QUICK_GROUPS)


@pytest.fixture
def wire(broker: BrokerThread) -> Iterator[Wire]:
    with Wire(broker.host_and_port) as opened:
        yield opened


@pytest.fixture
def topic(broker: BrokerThread) -> Topic:
    return broker.create_topic("granite", 2)


def beat(wire: Wire, version: int = 1, **fields: Any) -> Struct:  # noqa: ANN401  # any field
    given = {
        "group_id": "masons",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout": 10_000,
        "subscribed_topic_names": ["granite"],
        "topic_partitions": [],
        **fields,
    }
    return wire.ask("consumer_group_heartbeat", version, Struct(**given))


def classic_join(wire: Wire, member_id: str = "") -> Struct:
    return wire.ask(
        "join_group",
        9,
        Struct(
            group_id="masons",
            session_timeout=60_000,
            rebalance_timeout=60_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[Struct(name="range", metadata=encode_subscription("granite"))],
        ),
    )


def commit(wire: Wire, topic: Topic, version: int, member_id: str, epoch: int) -> int:
    """Commit offset 5 of partition 0, and return the error code."""
    response = wire.ask(
        "offset_commit",
        version,
        Struct(
            group_id="masons",
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=[
                Struct(
                    name="granite",
                    topic_id=topic.topic_id,
                    partitions=[Struct(partition_index=0, committed_offset=5, committed_metadata="")],
                )
            ],
        ),
    )
    return int(response.topics[0].partitions[0].error_code)


def test_members_join_send_heartbeats_and_leave_in_every_version(wire: Wire, topic: Topic) -> None:
    """They are described, too. The versions are all that have a schema."""
    assert message_versions("consumer_group_heartbeat") == (0, 1)
    for version in _VERSIONS:
        given = {"member_id": ""} if version == 0 else {}
        joined = beat(wire, version, **given)
        assert joined.error_code == ErrorCode.none
        assert joined.heartbeat_interval == QUICK_GROUPS.group_consumer_heartbeat_interval_ms
        (assigned,) = joined.assignment.topic_partitions
        assert (assigned.topic_id, assigned.partitions) == (topic.topic_id, [0, 1])
        stamp = {"member_id": joined.member_id, "member_epoch": joined.member_epoch}
        again = beat(
            wire,
            version,
            **stamp,
            rebalance_timeout=-1,
            subscribed_topic_names=None,
            topic_partitions=[assigned],
        )
        assert (again.error_code, again.member_epoch) == (ErrorCode.none, joined.member_epoch)
        assert again.assignment is None
        described = wire.ask("consumer_group_describe", version, Struct(group_ids=["masons", "nobody"]))
        known, unknown = described.groups
        assert (known.group_state, known.assignor_name) == ("Stable", "uniform")
        (member,) = known.members
        assert (member.member_id, member.member_epoch) == (joined.member_id, joined.member_epoch)
        assert member.target_assignment.topic_partitions[0].topic_name == "granite"
        assert member.member_type == (1 if version else -1)
        assert unknown.error_code == ErrorCode.group_id_not_found
        assert beat(wire, version, **{**stamp, "member_epoch": -1}).member_epoch == -1


def test_rejected_heartbeats_have_kafkas_codes_and_a_message(wire: Wire, topic: Topic) -> None:
    """They are invalid, name an unknown group, or have a wrong epoch."""
    del topic
    rejected: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"group_id": ""}, ErrorCode.invalid_request),
        ({"member_epoch": 3}, ErrorCode.unknown_member_id),  # Kafka: GROUP_ID_NOT_FOUND
        ({"member_epoch": -1}, ErrorCode.group_id_not_found),
        ({"server_assignor": "magic"}, ErrorCode.unsupported_assignor),
        ({"subscribed_topic_regex": "("}, ErrorCode.invalid_regular_expression),
    ]
    for fields, code in rejected:
        response = beat(wire, **fields)
        assert response.error_code == code
        assert response.error_message
    beat(wire)
    assert beat(wire, member_epoch=9).error_code == ErrorCode.fenced_member_epoch
    assert beat(wire, member_id="x", member_epoch=9).error_code == ErrorCode.unknown_member_id


def test_members_of_both_protocols_share_a_group(wire: Wire, topic: Topic) -> None:
    """Each member uses the APIs of its protocol. Admin clients see one group and can remove any member."""
    beat(wire)
    first = classic_join(wire)
    assert first.error_code == ErrorCode.member_id_required
    joined = classic_join(wire, first.member_id)
    assert (joined.error_code, joined.leader, joined.members) == (ErrorCode.none, "", [])
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    stamp = {"group_id": "masons", "generation_id": joined.generation_id, "member_id": joined.member_id}
    names = {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    synced = wire.ask("sync_group", 5, Struct(**stamp, **names))
    assert (synced.error_code, synced.protocol_name) == (ErrorCode.none, "range")
    assert read_assignment(bytes(synced.assignment)) == frozenset()
    odd = wire.ask("sync_group", 5, Struct(**stamp, **{**names, "protocol_name": "roundrobin"}))
    assert odd.error_code == ErrorCode.inconsistent_group_protocol
    assert wire.ask("heartbeat", 4, Struct(**stamp)).error_code == ErrorCode.none
    assert commit(wire, topic, 8, joined.member_id, joined.generation_id) == ErrorCode.none
    assert commit(wire, topic, 8, joined.member_id, 99) == ErrorCode.illegal_generation
    stranger = {**stamp, "member_id": "m"}
    assert wire.ask("heartbeat", 4, Struct(**stranger)).error_code == ErrorCode.unknown_member_id
    assert wire.ask("sync_group", 5, Struct(**stranger, **names)).error_code == ErrorCode.unknown_member_id
    leaving = [Struct(member_id="x"), Struct(member_id=joined.member_id)]
    described = wire.ask("consumer_group_describe", 1, Struct(group_ids=["masons"])).groups[0]
    assert {each.member_id: each.member_type for each in described.members} == {"m": 1, joined.member_id: 0}
    left = wire.ask("leave_group", 5, Struct(group_id="masons", members=leaving))
    assert [each.error_code for each in left.members] == [ErrorCode.unknown_member_id, ErrorCode.none]
    seen = wire.ask("describe_groups", 6, Struct(groups=["masons"])).groups[0]
    assert (seen.error_code, seen.group_state) == (ErrorCode.group_id_not_found, "Dead")
    assert seen.error_message == "Group masons is not a classic group."
    deleted = wire.ask(
        "offset_delete",
        0,
        Struct(group_id="masons", topics=[Struct(name=topic.name, partitions=[Struct(partition_index=0)])]),
    )
    assert deleted.topics[0].partitions[0].error_code == ErrorCode.group_subscribed_to_topic
    removed = wire.ask("leave_group", 5, Struct(group_id="masons", members=[Struct(member_id="m")]))
    assert [each.error_code for each in removed.members] == [ErrorCode.none]
    assert beat(wire, member_epoch=2).error_code == ErrorCode.unknown_member_id


def test_an_empty_group_takes_the_protocol_of_the_next_member(wire: Wire, topic: Topic) -> None:
    """A classic group with members becomes a consumer group. ListGroups reports the current type."""
    del topic
    beat(wire)
    assert beat(wire, member_epoch=-1).error_code == ErrorCode.none
    assert classic_join(wire, "m").error_code == ErrorCode.unknown_member_id
    member_id = classic_join(wire).member_id
    assert classic_join(wire, member_id).error_code == ErrorCode.none
    found = wire.ask("consumer_group_describe", 1, Struct(group_ids=["masons"])).groups[0]
    assert found.error_message == "Group masons is not a consumer group."
    assert listed_by_type(wire) == {"classic": 1, "consumer": 0}
    joined = beat(wire)
    assert joined.error_code == ErrorCode.none
    assert listed_by_type(wire) == {"classic": 0, "consumer": 1}


def listed_by_type(wire: Wire) -> dict[str, int]:
    """Return the number of groups of each type."""
    return {
        wanted: len(wire.ask("list_groups", 5, Struct(states_filter=[], types_filter=[wanted])).groups)
        for wanted in ("classic", "consumer")
    }


def test_each_partition_of_a_commit_is_checked_by_its_epoch(wire: Wire, topic: Topic) -> None:
    """An earlier epoch may commit partitions that the member still has, but not those that it revoked."""
    epoch = beat(wire).member_epoch
    beat(wire, member_id="other")
    kept = beat(wire, member_epoch=epoch).assignment.topic_partitions[0].partitions
    owned = [Struct(topic_id=topic.topic_id, partitions=kept)]
    assert beat(wire, member_epoch=epoch, topic_partitions=owned).member_epoch == epoch + 1
    assert len(kept) == 1
    partitions = [
        Struct(partition_index=number, committed_offset=3, committed_leader_epoch=0, committed_metadata="")
        for number in range(3)
    ]
    request = Struct(
        group_id="masons",
        member_id="m",
        generation_id_or_member_epoch=epoch,
        topics=[Struct(name="granite", topic_id=topic.topic_id, partitions=partitions)],
    )
    (response,) = wire.ask("offset_commit", 9, request).topics
    codes = {each.partition_index: each.error_code for each in response.partitions}
    revoked = ({0, 1} - set(kept)).pop()
    assert codes == {
        kept[0]: ErrorCode.none,
        revoked: ErrorCode.stale_member_epoch,
        2: ErrorCode.unknown_topic_or_partition,
    }


def test_a_group_keeps_its_protocol_if_migration_is_disabled(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """A member of the consumer protocol cannot join a classic group that has members."""
    disabled = replace(QUICK_GROUPS, group_consumer_migration_policy=MigrationPolicy.DISABLED)
    broker = start_broker(groups=disabled)
    broker.create_topic("granite", 2)
    with Wire(broker.host_and_port) as wire:
        assert classic_join(wire, classic_join(wire).member_id).error_code == ErrorCode.none
        assert beat(wire).error_code == ErrorCode.group_id_not_found
        assert listed_by_type(wire) == {"classic": 1, "consumer": 0}


def test_offsets_are_fenced_by_member_epochs(wire: Wire, topic: Topic) -> None:
    """Requests name the member's epoch. Versions without a member epoch are rejected."""
    assert commit(wire, topic, 9, "m", 1) == ErrorCode.group_id_not_found
    assert commit(wire, topic, 8, "m", 1) == ErrorCode.illegal_generation
    epoch = beat(wire).member_epoch
    for version, member_id, used, code in [
        (8, "m", epoch, ErrorCode.unsupported_version),
        (9, "m", epoch + 1, ErrorCode.stale_member_epoch),
        (9, "m", epoch - 1, ErrorCode.stale_member_epoch),
        (9, "x", epoch, ErrorCode.unknown_member_id),
        (9, "", -1, ErrorCode.unknown_member_id),
        (9, "m", epoch, ErrorCode.none),
        (10, "m", epoch, ErrorCode.none),
    ]:
        assert commit(wire, topic, version, member_id, used) == code
    wanted = [Struct(name="granite", topic_id=topic.topic_id, partition_indexes=[0])]
    for version in (9, 10):
        for member, used, code in [
            (None, -1, ErrorCode.none),
            ("m", epoch, ErrorCode.none),
            ("m", epoch + 1, ErrorCode.stale_member_epoch),
            ("x", epoch, ErrorCode.unknown_member_id),
        ]:
            request = Struct(group_id="masons", member_id=member, member_epoch=used, topics=wanted)
            (group,) = wire.ask("offset_fetch", version, Struct(groups=[request])).groups
            assert group.error_code == code
            if code is ErrorCode.none:
                assert group.topics[0].partitions[0].committed_offset == 5
