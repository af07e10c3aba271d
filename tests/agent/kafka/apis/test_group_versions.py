"""Every version of the group APIs, without a client library."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from agent.kafka.apis.groups import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from agent.kafka.codec import Cursor, Message, Output, Struct
from agent.kafka.errors import ErrorCode
from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from object_store.local.store import LocalStore
from tests.agent.faulty_store import FaultyStore
from tests.agent.groups.classic_harness import encode_subscription
from tests.agent.kafka.brokers import BrokerThread
from tests.agent.kafka.coordinators import groups_of
from tests.agent.kafka.waiting import QUICK_GROUPS
from tests.fixtures.postgres import PATIENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.kafka.api_definition import Api
    from catalog.model import Topic
    from tests.fixtures.postgres import PostgresForTests


class Connection:
    """A connection that sends requests of any version."""

    def __init__(self, broker: BrokerThread) -> None:
        self._socket = socket.create_connection(broker.host_and_port, timeout=120)
        self._number = 0

    def close(self) -> None:
        self._socket.close()

    def ask(self, api: Api, version: int, **fields: Any) -> Struct:  # noqa: ANN401  # any API's fields
        message = Message.of(api.name, version)
        self._number += 1
        out = Output()
        out.tail += api.key.to_bytes(2, "big") + version.to_bytes(2, "big")
        out.tail += self._number.to_bytes(4, "big") + (4).to_bytes(2, "big") + b"line"
        if message.is_flexible:
            out.tail.append(0)
        message.write_request(out, Struct(**fields))
        body = b"".join(bytes(each) for each in out.buffers())
        self._socket.sendall(len(body).to_bytes(4, "big") + body)
        response = self._read(int.from_bytes(self._read(4), "big"))
        assert int.from_bytes(response[:4], "big") == self._number
        return message.read_response(Cursor(memoryview(response)[5 if message.is_flexible else 4 :]))

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += self._socket.recv(count - len(data)) or pytest.fail("the connection was closed")
        return data


@pytest.fixture(scope="module")
def shared_broker(
    postgres: PostgresForTests, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerThread]:
    """One agent for all versions, because starting one takes longer than a test."""
    clock = SystemClock()
    ids = SystemIds(clock)
    address = postgres.create(empty=False)
    with open_catalog(address, clock, ids, limits=PATIENT) as catalog:
        store = FaultyStore(LocalStore(tmp_path_factory.mktemp("objects"), ids))
        broker = BrokerThread(catalog, store, clock, ids, {"groups": QUICK_GROUPS})
        broker.start()
        yield broker
        broker.stop()
    postgres.drop(address)


@pytest.fixture
def broker(shared_broker: BrokerThread) -> Iterator[BrokerThread]:
    """The agent, without groups and topics of earlier tests."""
    yield shared_broker
    catalog, groups = shared_broker.catalog, groups_of(shared_broker)

    async def forget(group_id: str) -> None:
        groups.cache.drop_deleted(group_id)

    for listed in catalog.groups.page():
        claim_id = SystemIds(SystemClock()).new_uuid()
        catalog.groups.claim(listed.group_id, claim_id, create=False)
        catalog.groups.delete(listed.group_id, claim_id)
        shared_broker.run(forget(listed.group_id))
    for topic in catalog.topics.list():
        catalog.topics.delete(topic.name)
        shared_broker.agent.data.directory.invalidate(topic.name)


@pytest.fixture
def connection(broker: BrokerThread) -> Iterator[Connection]:
    opened = Connection(broker)
    yield opened
    opened.close()


@pytest.fixture
def topic(broker: BrokerThread) -> Topic:
    return broker.create_topic("granite", 2)


def versions(api: Api) -> range:
    return range(api.min_version, api.max_version + 1)


def join(
    connection: Connection, version: int = 9, group_id: str = "masons", topics: tuple[str, ...] = ()
) -> Struct:
    """Join a group; if the version requires a member id, join a second time with it."""
    fields = {
        "group_id": group_id,
        "session_timeout": 60_000,
        "rebalance_timeout": 60_000,
        "protocol_type": "consumer",
        "protocols": [Struct(name="range", metadata=encode_subscription(*topics))],
    }
    response = connection.ask(join_group.API, version, member_id="", **fields)
    if version >= 4:
        assert response.error_code == ErrorCode.member_id_required
        response = connection.ask(join_group.API, version, member_id=response.member_id, **fields)
    return response


@pytest.mark.parametrize("version", versions(join_group.API))
def test_members_join_sync_send_heartbeats_and_leave(connection: Connection, version: int) -> None:
    sync, beat, leave = (
        min(version, api.max_version) for api in (sync_group.API, heartbeat.API, leave_group.API)
    )
    joined = join(connection, version)
    assert joined.error_code == ErrorCode.none
    assert joined.generation_id == 1
    assert joined.leader == joined.member_id
    assert joined.protocol_name == "range"
    assert [member.member_id for member in joined.members] == [joined.member_id]
    stamp = {"group_id": "masons", "generation_id": 1, "member_id": joined.member_id}
    synced = connection.ask(
        sync_group.API,
        sync,
        **stamp,
        **({"protocol_type": "consumer", "protocol_name": "range"} if sync >= 5 else {}),
        assignments=[Struct(member_id=joined.member_id, assignment=b"work")],
    )
    assert (synced.error_code, bytes(synced.assignment)) == (ErrorCode.none, b"work")
    assert connection.ask(heartbeat.API, beat, **stamp).error_code == ErrorCode.none
    wrong = {**stamp, "generation_id": 2}
    assert connection.ask(heartbeat.API, beat, **wrong).error_code == ErrorCode.illegal_generation
    going: dict[str, Any] = {"member_id": joined.member_id}
    if leave >= 3:
        going = {"members": [Struct(member_id=joined.member_id), Struct(member_id="unknown")]}
    left = connection.ask(leave_group.API, leave, group_id="masons", **going)
    assert left.error_code == ErrorCode.none
    if leave >= 3:
        assert [each.error_code for each in left.members] == [ErrorCode.none, ErrorCode.unknown_member_id]
    assert connection.ask(heartbeat.API, beat, **stamp).error_code == ErrorCode.unknown_member_id


@pytest.mark.parametrize("version", range(3))
def test_early_versions_report_unknown_members_at_the_top(connection: Connection, version: int) -> None:
    """These versions of LeaveGroup and SyncGroup have no error codes by member."""
    left = connection.ask(leave_group.API, version, group_id="masons", member_id="unknown")
    assert left.error_code == ErrorCode.unknown_member_id
    synced = connection.ask(
        sync_group.API, version, group_id="masons", generation_id=1, member_id="unknown", assignments=[]
    )
    assert synced.error_code == ErrorCode.unknown_member_id


@pytest.mark.parametrize("version", versions(join_group.API))
def test_responses_to_rejected_joins_are_well_formed(connection: Connection, version: int) -> None:
    fields: dict[str, Any] = {"rebalance_timeout": 1, "member_id": "", "protocol_type": "c", "protocols": []}
    response = connection.ask(join_group.API, version, group_id="", session_timeout=10_000, **fields)
    assert response.error_code == ErrorCode.invalid_group_id
    response = connection.ask(join_group.API, version, group_id="g", session_timeout=1, **fields)
    assert response.error_code == ErrorCode.invalid_session_timeout
    response = connection.ask(join_group.API, version, group_id="g", session_timeout=10_000, **fields)
    assert response.error_code == ErrorCode.inconsistent_group_protocol


@pytest.mark.parametrize("version", versions(offset_commit.API))
def test_offsets_are_committed(connection: Connection, topic: Topic, version: int) -> None:
    def partition(index: int, metadata: str = "") -> Struct:
        return Struct(partition_index=index, committed_offset=5, committed_metadata=metadata)

    known: dict[str, Any] = {"topic_id": topic.topic_id} if version >= 10 else {"name": "granite"}
    unknown: dict[str, Any] = {"topic_id": None} if version >= 10 else {"name": "basalt"}
    response = connection.ask(
        offset_commit.API,
        version,
        group_id="masons",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            Struct(**known, partitions=[partition(0), partition(1, "x" * 5000), partition(2)]),
            Struct(**unknown, partitions=[partition(0)]),
        ],
    )
    missing = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.unknown_topic_or_partition
    assert [[each.error_code for each in found.partitions] for found in response.topics] == [
        [ErrorCode.none, ErrorCode.offset_metadata_too_large, ErrorCode.unknown_topic_or_partition],
        [missing],
    ]
    fetched = connection.ask(offset_fetch.API, 2, group_id="masons", topics=None)
    assert [(each.name, len(each.partitions)) for each in fetched.topics] == [("granite", 1)]
    refused = connection.ask(
        offset_commit.API,
        version,
        group_id="masons",
        generation_id_or_member_epoch=1,
        member_id="unknown",
        topics=[Struct(**known, partitions=[partition(0)])],
    )
    assert refused.topics[0].partitions[0].error_code == ErrorCode.unknown_member_id


@pytest.mark.parametrize("version", versions(offset_fetch.API))
def test_offsets_are_fetched(connection: Connection, topic: Topic, version: int) -> None:
    connection.ask(
        offset_commit.API,
        9,
        group_id="masons",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            Struct(
                name="granite",
                partitions=[Struct(partition_index=1, committed_offset=5, committed_metadata="note")],
            )
        ],
    )
    wanted = Struct(
        **({"topic_id": topic.topic_id} if version >= 10 else {"name": "granite"}),
        partition_indexes=[0, 1, 9],
    )
    for topics, offsets in [([wanted], [-1, 5, -1]), (None, [5])]:
        if topics is None and version < 2:
            continue
        if version >= 8:
            response = connection.ask(
                offset_fetch.API, version, groups=[Struct(group_id="masons", topics=topics)]
            ).groups[0]
        else:
            response = connection.ask(offset_fetch.API, version, group_id="masons", topics=topics)
        assert response.error_code == ErrorCode.none
        (found,) = response.topics
        assert (found.topic_id == topic.topic_id) if version >= 10 else (found.name == "granite")
        assert [each.committed_offset for each in found.partitions] == offsets
        assert all(each.error_code == ErrorCode.none for each in found.partitions)


@pytest.mark.parametrize("version", versions(find_coordinator.API))
def test_coordinators_are_looked_up(connection: Connection, broker: BrokerThread, version: int) -> None:
    def found(key_type: int) -> Struct:
        if version >= 4:
            response = connection.ask(
                find_coordinator.API, version, key_type=key_type, coordinator_keys=["masons", "others"]
            )
            assert [each.key for each in response.coordinators] == ["masons", "others"]
            return Struct(**response.coordinators[0].__dict__)
        fields = {"key_type": key_type} if version >= 1 else {}
        return connection.ask(find_coordinator.API, version, key="masons", **fields)

    assert found(0).error_code == ErrorCode.none
    assert (found(0).host, found(0).port) == broker.host_and_port
    if version >= 1:
        assert (found(1).host, found(1).port) == broker.host_and_port
        assert found(2).error_code == ErrorCode.invalid_request


@pytest.mark.parametrize("version", versions(describe_groups.API))
def test_groups_are_described(connection: Connection, version: int) -> None:
    joined = join(connection)
    response = connection.ask(describe_groups.API, version, groups=["masons", "unknown"])
    known, unknown = response.groups
    assert (known.error_code, known.group_state) == (ErrorCode.none, "CompletingRebalance")
    assert [member.member_id for member in known.members] == [joined.member_id]
    missing = ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none
    assert (unknown.error_code, unknown.group_state) == (missing, "Dead")


@pytest.mark.parametrize("version", versions(list_groups.API))
def test_groups_are_listed(connection: Connection, version: int) -> None:
    join(connection)
    (group,) = connection.ask(list_groups.API, version).groups
    assert (group.group_id, group.protocol_type) == ("masons", "consumer")
    if version >= 4:
        assert connection.ask(list_groups.API, version, states_filter=["Stable", "Empty"]).groups == []
        assert (
            len(connection.ask(list_groups.API, version, states_filter=["completingrebalance"]).groups) == 1
        )
    if version >= 5:
        assert connection.ask(list_groups.API, version, types_filter=["consumer"]).groups == []
        assert len(connection.ask(list_groups.API, version, types_filter=["Classic"]).groups) == 1


@pytest.mark.parametrize("version", versions(delete_groups.API))
def test_groups_are_deleted(connection: Connection, version: int) -> None:
    joined = join(connection)
    response = connection.ask(delete_groups.API, version, groups_names=["masons", "unknown"])
    assert {each.group_id: each.error_code for each in response.results} == {
        "masons": ErrorCode.non_empty_group,
        "unknown": ErrorCode.group_id_not_found,
    }
    connection.ask(leave_group.API, 5, group_id="masons", members=[Struct(member_id=joined.member_id)])
    response = connection.ask(delete_groups.API, version, groups_names=["masons"])
    assert response.results[0].error_code == ErrorCode.none


def test_offsets_are_deleted_unless_a_member_subscribes(
    connection: Connection, broker: BrokerThread, topic: Topic
) -> None:
    broker.create_topic("basalt")
    unused = [Struct(partition_index=0)]
    absent = connection.ask(offset_delete.API, 0, group_id="masons", topics=[])
    assert absent.error_code == ErrorCode.group_id_not_found
    joined = join(connection, topics=("granite",))
    connection.ask(
        sync_group.API,
        4,
        group_id="masons",
        generation_id=1,
        member_id=joined.member_id,
        assignments=[],
    )
    connection.ask(
        offset_commit.API,
        9,
        group_id="masons",
        generation_id_or_member_epoch=1,
        member_id=joined.member_id,
        topics=[
            Struct(
                name=name,
                partitions=[Struct(partition_index=0, committed_offset=5, committed_metadata="")],
            )
            for name in (topic.name, "basalt")
        ],
    )
    response = connection.ask(
        offset_delete.API,
        0,
        group_id="masons",
        topics=[Struct(name=name, partitions=unused) for name in ("granite", "basalt", "slate")],
    )
    assert [each.partitions[0].error_code for each in response.topics] == [
        ErrorCode.group_subscribed_to_topic,
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
    ]
    fetched = connection.ask(offset_fetch.API, 2, group_id="masons", topics=None)
    assert [each.name for each in fetched.topics] == ["granite"]
