"""The consumer group protocol spoken without a client: codes and fields in every version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent.kafka.codec import Struct, message_versions
from agent.kafka.errors import ErrorCode
from tests.groups.stage import subscription
from tests.kafka.waiting import QUICK_GROUPS
from tests.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from catalog.model import Topic
    from tests.kafka.brokers import BrokerThread

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
            session_timeout=10_000,
            rebalance_timeout=10_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[Struct(name="range", metadata=subscription("granite"))],
        ),
    )


def commit(wire: Wire, topic: Topic, version: int, member_id: str, epoch: int) -> int:
    """The code of a commit of offset 5 in partition 0."""
    answer = wire.ask(
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
    return int(answer.topics[0].partitions[0].error_code)


def test_members_live_in_every_version(wire: Wire, topic: Topic) -> None:
    """Join, go on, be described, leave; the test covers each version that there is a schema for."""
    assert message_versions("consumer_group_heartbeat") == (0, 1)
    for version in _VERSIONS:
        given = {"member_id": ""} if version == 0 else {}
        joined = beat(wire, version, **given)
        assert joined.error_code == ErrorCode.none
        assert joined.heartbeat_interval == QUICK_GROUPS.consumer_heartbeat_interval_ms
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


def test_refusals_have_kafka_s_codes_and_words(wire: Wire, topic: Topic) -> None:
    """What a group would never take, and groups that are not there."""
    del topic
    refusals: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"group_id": ""}, ErrorCode.invalid_request),
        ({"member_epoch": 3}, ErrorCode.group_id_not_found),
        ({"member_epoch": -1}, ErrorCode.group_id_not_found),
        ({"server_assignor": "magic"}, ErrorCode.unsupported_assignor),
        ({"subscribed_topic_regex": "("}, ErrorCode.invalid_regular_expression),
    ]
    for fields, code in refusals:
        answer = beat(wire, **fields)
        assert answer.error_code == code
        assert answer.error_message
    beat(wire)
    assert beat(wire, member_epoch=9).error_code == ErrorCode.fenced_member_epoch
    assert beat(wire, member_id="x", member_epoch=9).error_code == ErrorCode.unknown_member_id


def test_groups_do_not_mix_protocols(wire: Wire, topic: Topic) -> None:
    """Whoever speaks the other one is refused while there are members, and welcome when there are none."""
    beat(wire)
    assert classic_join(wire).error_code == ErrorCode.inconsistent_group_protocol
    stamp: dict[str, Any] = {"group_id": "masons", "generation_id": 1, "member_id": "m"}
    assert wire.ask("heartbeat", 4, Struct(**stamp)).error_code == ErrorCode.unknown_member_id
    synced = wire.ask(
        "sync_group",
        5,
        Struct(**stamp, protocol_type="consumer", protocol_name="range", assignments=[]),
    )
    assert synced.error_code == ErrorCode.unknown_member_id
    left = wire.ask("leave_group", 5, Struct(group_id="masons", members=[Struct(member_id="m")]))
    assert left.members[0].error_code == ErrorCode.unknown_member_id
    seen = wire.ask("describe_groups", 6, Struct(groups=["masons"])).groups[0]
    assert (seen.error_code, seen.group_state) == (ErrorCode.group_id_not_found, "Dead")
    assert seen.error_message == "Group masons is not a classic group."
    deleted = wire.ask(
        "offset_delete",
        0,
        Struct(group_id="masons", topics=[Struct(name=topic.name, partitions=[Struct(partition_index=0)])]),
    )
    assert deleted.topics[0].partitions[0].error_code == ErrorCode.group_subscribed_to_topic
    assert beat(wire, member_epoch=-1).error_code == ErrorCode.none

    assert classic_join(wire, "m").error_code == ErrorCode.unknown_member_id
    member_id = classic_join(wire).member_id
    assert classic_join(wire, member_id).error_code == ErrorCode.none
    assert beat(wire).error_code == ErrorCode.group_id_not_found
    found = wire.ask("consumer_group_describe", 1, Struct(group_ids=["masons"])).groups[0]
    assert found.error_message == "Group masons is not a consumer group."
    for wanted, count in (("classic", 1), ("consumer", 0)):
        listed = wire.ask("list_groups", 5, Struct(states_filter=[], types_filter=[wanted]))
        assert len(listed.groups) == count


def test_offsets_are_fenced_by_member_epochs(wire: Wire, topic: Topic) -> None:
    """Commits and fetches name the member's own epoch; older requests cannot, and are refused."""
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
            asked = Struct(group_id="masons", member_id=member, member_epoch=used, topics=wanted)
            (group,) = wire.ask("offset_fetch", version, Struct(groups=[asked])).groups
            assert group.error_code == code
            if code is ErrorCode.none:
                assert group.topics[0].partitions[0].committed_offset == 5
