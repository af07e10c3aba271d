"""Rules that the table of rights does not show: partial refusals, hidden resources, revocation and HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.security.rights import SUPPORTED_OPERATIONS
from catalog.security.acl_bindings import AclFilter, ResourceType
from object_format.record_batch.records import encode_batch
from tests.agent.kafka.authorization.cases import heartbeat, is_refused
from tests.agent.kafka.authorization.principals import allow, refresh
from tests.agent.kafka.authorization.transaction_cases import addition
from tests.agent.kafka.brokers import BrokerThread
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire, request_frame
from tests.agent.kafka.work import Work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

_REFUSED = ErrorCode.topic_authorization_failed
_BATCH = bytes(encode_batch([1], [b"k"], [b"v"]))


@pytest.fixture(scope="module")
def topics(secured: BrokerThread) -> dict[str, UUID]:
    """Topics. `alice` may use those whose names begin with `a`."""
    found = {name: secured.create_topic(name).topic_id for name in ("a1", "a2", "secret")}
    bindings = allow(
        "alice", "All Topic a*", "DescribeConfigs Topic a*", "Describe Topic known", "All Group a*"
    )
    secured.catalog.acls.add(bindings)
    refresh(secured)
    return found


@pytest.fixture
def alice(secured: BrokerThread, topics: dict[str, UUID]) -> Iterator[Wire]:
    assert topics
    with Wire(secured.host_and_port, client_id="alice") as wire:
        yield wire


def produce(wire: Wire, *names: str, size: int = 1) -> dict[str, int]:
    parts = [Struct(index=0, records=bytes(encode_batch([1], [b"k"], [bytes(size)])))]
    data = [Struct(name=name, partition_data=parts) for name in names]
    request = Struct(transactional_id=None, acks=-1, timeout=60_000, topic_data=data)
    return {
        topic.name: topic.partition_responses[0].error_code
        for topic in wire.ask("produce", 9, request).responses
    }


def fetch(
    wire: Wire, topic_ids: list[UUID], *, max_wait: int = 0, min_bytes: int = 0, offset: int = 0
) -> dict[UUID, int]:
    part = Struct(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=2**20,
    )
    request = Struct(
        max_wait=max_wait,
        min_bytes=min_bytes,
        max_bytes=2**20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[Struct(topic_id=each, partitions=[part]) for each in topic_ids],
        forgotten_topics_data=[],
        rack_id="",
    )
    return {
        topic.topic_id: topic.partitions[0].error_code for topic in wire.ask("fetch", 13, request).responses
    }


def metadata(wire: Wire, wanted: list[Struct] | None, *, operations: bool = False) -> list[Struct]:
    request = Struct(
        topics=wanted,
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=operations,
        include_cluster_authorized_operations=False,
    )
    found: list[Struct] = wire.ask("metadata", 12, request).topics
    return found


def test_a_refused_topic_does_not_fail_the_others(alice: Wire, topics: dict[str, UUID]) -> None:
    assert produce(alice, "a1", "secret", "a2", "missing") == {
        "a1": 0,
        "secret": _REFUSED,
        "a2": 0,
        "missing": _REFUSED,
    }
    for max_wait in (0, 500):  # on the ordinary path and on the fast path
        assert fetch(alice, [topics["a1"], topics["secret"]], max_wait=max_wait) == {
            topics["a1"]: 0,
            topics["secret"]: _REFUSED,
        }


def test_a_fetch_session_of_another_principal_shows_no_names(secured: BrokerThread, alice: Wire) -> None:
    """As on the ordinary path, so on the fast path, which handles requests that may wait."""
    part = Struct(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=0,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=2**20,
    )

    def ask(wire: Wire, session_id: int, epoch: int, names: list[str], max_wait: int = 0) -> Struct:
        request = Struct(
            max_wait=max_wait,
            min_bytes=0,
            max_bytes=2**20,
            isolation_level=0,
            session_id=session_id,
            session_epoch=epoch,
            topics=[Struct(topic=name, topic_id=None, partitions=[part]) for name in names],
            forgotten_topics_data=[],
            rack_id="",
        )
        return wire.ask("fetch", 12, request)

    with Wire(secured.host_and_port, client_id="admin") as admin:
        session_id = ask(admin, 0, 0, ["a1", "secret"]).session_id
        assert session_id
        for max_wait in (0, 500):
            refused = ask(alice, session_id, 1, [], max_wait)
            assert (refused.error_code, refused.responses) == (ErrorCode.fetch_session_id_not_found, [])
            assert ask(alice, session_id, -1, ["a1"], max_wait).error_code == 0
        assert ask(admin, session_id, 1, []).error_code == 0, "the session still exists"


def test_a_refused_transactional_id_is_reported_before_its_partitions(alice: Wire) -> None:
    """As in Kafka: neither a refused topic nor a missing one changes the error."""
    request = addition(0, 0)
    request.v3_and_below_topics = [
        Struct(name=name, partitions=[0]) for name in ("a1", "a-missing", "secret")
    ]
    added = alice.ask("add_partitions_to_txn", 3, request).results_by_topic_v3_and_below
    found = {each.results_by_partition[0].partition_error_code for each in added}
    assert found == {ErrorCode.transactional_id_authorization_failed}


def test_acks_0_of_a_refused_topic_closes_the_connection(secured: BrokerThread, alice: Wire) -> None:
    del alice
    with Wire(secured.host_and_port, client_id="alice") as wire:
        parts = [Struct(index=0, records=_BATCH)]
        data = [Struct(name="secret", partition_data=parts)]
        request = Struct(transactional_id=None, acks=0, timeout=60_000, topic_data=data)
        wire.send(request_frame("produce", 9, 1, request, client_id="alice"))
        assert wire.is_closed()


def test_metadata_hides_what_the_principal_may_not_describe(alice: Wire, topics: dict[str, UUID]) -> None:
    assert [each.name for each in metadata(alice, None)] == ["a1", "a2"]
    named = [Struct(name=name, topic_id=None) for name in ("secret", "missing", "known", "a1")]
    secret, missing, known, visible = metadata(alice, named)
    assert (secret.error_code, secret.topic_id, missing.error_code) == (_REFUSED, None, _REFUSED)
    assert (known.error_code, visible.error_code) == (_REFUSED, 0)  # it may not create the one
    (by_id,) = metadata(alice, [Struct(name=None, topic_id=topics["secret"])])
    assert (by_id.error_code, by_id.name, by_id.topic_id) == (_REFUSED, None, topics["secret"])


def test_responses_carry_the_authorized_operations_of_the_principal(alice: Wire) -> None:
    (topic,) = metadata(alice, [Struct(name="a1", topic_id=None)], operations=True)
    every = sum(1 << each.operation for each in SUPPORTED_OPERATIONS[ResourceType.TOPIC])
    assert topic.topic_authorized_operations == every


def test_a_revoked_right_ends_for_a_waiting_fetch_and_on_every_agent(
    secured: BrokerThread, topics: dict[str, UUID]
) -> None:
    """The other agent learns of it by a notification; the fetch began while it was allowed."""
    acls = allow("bob", "Read Topic a2", "Write Topic a2")
    secured.catalog.acls.add(acls)
    refresh(secured)
    other = BrokerThread(secured.catalog, secured.store, secured.clock, secured.ids, _follower_settings())
    try:
        other.start()
        with (
            Wire(secured.host_and_port, client_id="bob") as one,
            Wire(other.host_and_port, client_id="bob") as two,
        ):
            assert fetch(two, [topics["a2"]]) == {topics["a2"]: 0}
            assert produce(one, "a2") == {"a2": 0}
            for broker, wire in ((secured, one), (other, two)):
                secured.catalog.acls.add(acls)
                refresh(broker)
                assert _revoke_while_waiting(broker, wire, topics["a2"]) == {topics["a2"]: _REFUSED}
            secured.catalog.acls.add(acls)
            until(lambda: fetch(two, [topics["a2"]]) == {topics["a2"]: 0})
            secured.catalog.acls.remove([AclFilter(principal="User:bob")])
            until(lambda: fetch(two, [topics["a2"]]) == {topics["a2"]: _REFUSED})
            until(lambda: produce(one, "a2") == {"a2": _REFUSED})
    finally:
        other.stop()


def _revoke_while_waiting(broker: BrokerThread, wire: Wire, topic_id: UUID) -> dict[UUID, int]:
    """Revoke all rights of bob while a fetch waits, then end its wait; return its outcome."""
    (state,) = broker.catalog.topics.partitions(topic_id)
    outcomes: list[dict[UUID, int]] = []

    def wait() -> None:
        outcomes.append(
            fetch(wire, [topic_id], max_wait=60_000, min_bytes=15_000, offset=state.log_end_offset)
        )

    waiting = Work(wait)
    until(lambda: broker.agent.data.commit_notifier.has_waiters)
    broker.catalog.acls.remove([AclFilter(principal="User:bob")])
    refresh(broker)
    with Wire(broker.host_and_port, client_id="admin") as admin:
        assert produce(admin, "a2", size=20_000) == {"a2": 0}
    waiting.finish()
    return outcomes[0]


def _follower_settings() -> dict[str, Any]:
    """A poll that the test does not live to see: only notifications remain."""
    return {"authorizer_enable": True, "super_users": "User:admin", "acl_poll_ms": 3_600_000}


def test_http_uses_the_same_authorizer(secured: BrokerThread, topics: dict[str, UUID]) -> None:
    """Requests without authentication are those of `User:ANONYMOUS`."""
    assert topics
    with httpx.Client(base_url=f"http://{secured.http_address}", timeout=240, trust_env=False) as http:
        record = {"records": [{"value": "x"}]}
        calls: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("GET", "/v1/topics/a1", {}),
            ("GET", "/v1/topics/missing", {}),
            ("GET", "/v1/topics/a1/partitions", {}),
            ("DELETE", "/v1/topics/a1", {}),
            ("POST", "/v1/topics/a1/undelete", {}),
            ("POST", "/v1/topics", {"json": {"name": "new", "partitions": 1}}),
            ("POST", "/v1/topics/a1/records", {"json": record}),
            ("GET", "/v1/topics/a1/partitions/0/records", {}),
            ("GET", "/metrics", {}),
        )
        for method, path, arguments in calls:
            response = http.request(method, path, **arguments)
            assert response.status_code == 403, path
            assert response.json()["error"]["code"] == "not_authorized"
        assert http.get("/v1/topics").json() == {"topics": []}
        secured.catalog.acls.add(allow("ANONYMOUS", "All Topic a1", "Describe Cluster"))
        refresh(secured)
        assert http.post("/v1/topics/a1/records", json=record).status_code == 200
        assert http.get("/v1/topics/a1/partitions/0/records").status_code == 200
        assert [each["name"] for each in http.get("/v1/topics").json()["topics"]] == ["a1"]
        assert http.get("/metrics").status_code == 200


def test_a_refused_name_is_not_looked_up(secured: BrokerThread, topics: dict[str, UUID]) -> None:
    """The time of the response would tell whether the topic exists."""
    assert topics
    acls = allow("carol", "Read Group c", "Write TransactionalId c")
    secured.catalog.acls.add(acls)
    refresh(secured)
    part = Struct(
        partition=0, fetch_offset=0, partition_max_bytes=1, current_leader_epoch=-1, last_fetched_epoch=-1
    )
    offset = Struct(partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata="")
    producer = {"transactional_id": "c", "producer_id": 1, "producer_epoch": 0}

    def requests(name: str) -> list[tuple[str, int, Struct]]:
        commits = {"group_id": "c", "topics": [Struct(name=name, partitions=[offset])]}
        read = Struct(name=name, partition_indexes=[0])
        added = [Struct(name=name, partitions=[0])]
        wanted = [Struct(topic=name, partitions=[part])]
        batch = [Struct(name=name, partition_data=[Struct(index=0, records=_BATCH)])]
        return [
            ("produce", 9, Struct(transactional_id=None, acks=-1, timeout=1_000, topic_data=batch)),
            ("fetch", 12, Struct(replica_id=-1, max_wait=0, min_bytes=0, max_bytes=1, topics=wanted)),
            ("offset_commit", 8, Struct(**commits, generation_id_or_member_epoch=-1, member_id="")),
            ("offset_fetch", 7, Struct(group_id="c", topics=[read], require_stable=False)),
            ("txn_offset_commit", 3, Struct(**commits, **producer, generation_id=-1, member_id="")),
            (
                "add_partitions_to_txn",
                3,
                Struct(
                    v3_and_below_transactional_id="c",
                    v3_and_below_producer_id=1,
                    v3_and_below_producer_epoch=0,
                    v3_and_below_topics=added,
                ),
            ),
        ]

    with Wire(secured.host_and_port, client_id="carol") as wire:
        for name in ("secret", "missing"):
            for api, version, request in requests(name):
                secured.agent.data.directory.clear()
                before = secured.catalog_calls()
                response = wire.ask(api, version, request)
                looked_up = {"topics.get", "topics.by_names"} & {*(secured.catalog_calls() - before)}
                assert is_refused(response), (api, response)
                assert looked_up == set(), api


def test_a_right_to_delete_is_no_right_to_read(secured: BrokerThread) -> None:
    """The records of a topic that is undeleted under another name obey the rights on this name."""
    secured.create_topic("u-secret")
    rights = ("Delete Topic u-secret", "Create Topic v-*", "Read Topic v-*", "Create Topic u-secret")
    secured.catalog.acls.add(allow("ANONYMOUS", *rights))
    refresh(secured)
    with httpx.Client(base_url=f"http://{secured.http_address}", timeout=240, trust_env=False) as http:
        undelete = "/v1/topics/u-secret/undelete"
        assert http.delete("/v1/topics/u-secret").status_code == 204
        assert http.post(undelete, params={"new_name": "v-mine"}).status_code == 403
        assert http.post(undelete, params={"new_name": "u-secret"}).status_code == 200
        assert http.delete("/v1/topics/u-secret").status_code == 204
        assert http.post(undelete).status_code == 200
        assert http.delete("/v1/topics/u-secret").status_code == 204
        secured.catalog.acls.add(allow("ANONYMOUS", "Read Topic u-secret"))
        refresh(secured)
        assert http.post(undelete, params={"new_name": "v-mine"}).json()["name"] == "v-mine"
    secured.catalog.acls.remove([AclFilter(principal="User:ANONYMOUS")])
    refresh(secured)


def test_a_pattern_assigns_no_topic_that_the_member_may_not_describe(
    alice: Wire, topics: dict[str, UUID]
) -> None:
    request = heartbeat("a-patterns", "member")
    request.subscribed_topic_names, request.subscribed_topic_regex = None, ".*"

    def assigned() -> set[UUID]:
        response = alice.ask("consumer_group_heartbeat", 1, request)
        return {each.topic_id for each in response.assignment.topic_partitions}

    until(lambda: {topics["a1"], topics["a2"]} <= assigned())  # its agent has noticed the topics
    assert topics["secret"] not in assigned()
