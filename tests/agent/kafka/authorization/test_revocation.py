"""Rights that are revoked while a request waits: the response obeys the new ACLs."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from agent.kafka.apis.records import delete_records
from agent.kafka.apis.topics import create_topics
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from catalog.security.acl_bindings import AclFilter
from object_format.codecs.codec import Codec
from object_format.record_batch.records import encode_batch
from tests.agent.kafka.authorization.principals import allow, refresh
from tests.agent.kafka.coordinators import NO_EXPIRY, two_brokers
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire
from tests.agent.kafka.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from catalog.model import PartitionId, PartitionState
    from tests.agent.kafka.brokers import BrokerThread

_REFUSED_GROUP = ErrorCode.group_authorization_failed
_REFUSED_TOPIC = ErrorCode.topic_authorization_failed
_LISTS = {"create_topics": "topics", "create_partitions": "results", "delete_topics": "responses"}


def _grant(broker: BrokerThread, *rights: str, principal: str = "bob") -> None:
    broker.catalog.acls.add(allow(principal, *rights))
    refresh(broker)


def _revoke(broker: BrokerThread, principal: str = "bob") -> None:
    broker.catalog.acls.remove([AclFilter(principal=f"User:{principal}")])
    refresh(broker)


def _requests(broker: BrokerThread, api: str, version: int) -> float:
    labels = {"api": api, "version": str(version)}
    value = broker.agent.metrics.registry.get_sample_value("siltstone_kafka_requests_total", labels)
    return value or 0.0


class _Waiting:
    """A request in a thread; `response` is there after `finish`."""

    def __init__(self, broker: BrokerThread, wire: Wire, api: str, version: int, request: Struct) -> None:
        before = _requests(broker, api, version)
        self.response: Struct | None = None
        self._work = Work(lambda: self._ask(wire, api, version, request))
        until(lambda: _requests(broker, api, version) > before)

    def _ask(self, wire: Wire, api: str, version: int, request: Struct) -> None:
        self.response = wire.ask(api, version, request)

    def finish(self) -> Struct:
        self._work.finish()
        assert self.response is not None
        return self.response


def _join(group: str, member_id: str, metadata: bytes) -> Struct:
    return Struct(
        group_id=group,
        session_timeout=300_000,
        rebalance_timeout=300_000,
        member_id=member_id,
        protocol_type="test",
        protocols=[Struct(name="any", metadata=metadata)],
    )


def _sync(group: str, joined: Struct, assignments: dict[str, bytes]) -> Struct:
    return Struct(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[Struct(member_id=each, assignment=value) for each, value in assignments.items()],
    )


def _join_both(broker: BrokerThread, group: str, leader: Wire, follower: Wire) -> tuple[Struct, Struct]:
    """Let two clients join a group in this order, so that the first one leads; return their responses."""
    first = _Waiting(broker, leader, "join_group", 3, _join(group, "", b"of the leader"))
    second = _Waiting(broker, follower, "join_group", 3, _join(group, "", b"of the follower"))
    joined = first.finish(), second.finish()
    assert [each.error_code for each in joined] == [0, 0]
    assert joined[0].leader == joined[0].member_id
    return joined


def test_a_leader_without_its_right_does_not_see_the_members(secured: BrokerThread) -> None:
    """It is the leader, and waits for the other member to join again."""
    group = "g-revoked"
    _grant(secured, f"Read Group {group}")
    with (
        Wire(secured.host_and_port, client_id="bob") as bob,
        Wire(secured.host_and_port, client_id="admin") as admin,
    ):
        leader, follower = _join_both(secured, group, bob, admin)
        syncing = _Waiting(secured, admin, "sync_group", 2, _sync(group, follower, {}))
        assert bob.ask("sync_group", 2, _sync(group, leader, {follower.member_id: b"1"})).error_code == 0
        assert bytes(syncing.finish().assignment) == b"1"

        joining = _Waiting(secured, bob, "join_group", 3, _join(group, leader.member_id, b"new"))
        _revoke(secured)
        rejoined = admin.ask("join_group", 3, _join(group, follower.member_id, b"of the follower"))
        refused = joining.finish()
        assert (refused.error_code, refused.members) == (_REFUSED_GROUP, [])
        assert rejoined.error_code == 0


def test_a_follower_without_its_right_gets_no_assignment(secured: BrokerThread) -> None:
    group = "g-follower"
    _grant(secured, f"Read Group {group}")
    with (
        Wire(secured.host_and_port, client_id="bob") as bob,
        Wire(secured.host_and_port, client_id="admin") as admin,
    ):
        leader, follower = _join_both(secured, group, admin, bob)
        syncing = _Waiting(secured, bob, "sync_group", 2, _sync(group, follower, {}))
        _revoke(secured)
        synced = admin.ask("sync_group", 2, _sync(group, leader, {follower.member_id: b"secret"}))
        assert synced.error_code == 0
        refused = syncing.finish()
        assert (refused.error_code, bytes(refused.assignment)) == (_REFUSED_GROUP, b"")


@contextmanager
def _busy_kernels(broker: BrokerThread) -> Iterator[threading.Event]:
    """Occupy all threads that validate batches, until the event is set."""
    end = threading.Event()
    pool = broker.agent.resources.pools.kernels
    calls = [
        asyncio.run_coroutine_threadsafe(pool.run(end.wait), broker._loop)
        for _ in range(broker.settings.kernel_threads)
    ]
    try:
        until(lambda: pool.pending == len(calls))
        yield end
    finally:
        end.set()
        for each in calls:
            each.result(60)


def test_a_batch_that_waits_for_its_validation_is_not_appended(secured: BrokerThread) -> None:
    """The request names a topic that is refused from the start, so that it takes the ordinary path."""
    for name in ("w-one", "w-other"):
        secured.create_topic(name)
    _grant(secured, "Write Topic w-one")
    batch = bytes(encode_batch([1], [b"k"], [bytes(500)], codec=Codec.ZSTD))
    parts = [Struct(index=0, records=batch)]
    request = Struct(
        transactional_id=None,
        acks=-1,
        timeout=60_000,
        topic_data=[Struct(name=name, partition_data=parts) for name in ("w-one", "w-other")],
    )

    def codes(response: Struct) -> dict[str, int]:
        return {each.name: each.partition_responses[0].error_code for each in response.responses}

    with Wire(secured.host_and_port, client_id="bob") as bob:
        assert codes(bob.ask("produce", 9, request)) == {"w-one": 0, "w-other": _REFUSED_TOPIC}
        with _busy_kernels(secured) as end:
            pool = secured.agent.resources.pools.kernels
            before = pool.pending
            waiting = _Waiting(secured, bob, "produce", 9, request)
            until(lambda: pool.pending > before)
            _revoke(secured)
            end.set()
        assert codes(waiting.finish()) == {"w-one": _REFUSED_TOPIC, "w-other": _REFUSED_TOPIC}


@pytest.mark.parametrize("is_retained", [False, True])
def test_a_request_about_many_topics_ends_with_its_right(
    secured: BrokerThread, monkeypatch: pytest.MonkeyPatch, *, is_retained: bool
) -> None:
    """It is revoked after the first change. Other ACLs that still allow the request do not end it."""
    prefix = f"m-{is_retained}-"
    names = [f"{prefix}{number}" for number in range(3)]
    catalog = secured.catalog
    monkeypatch.setattr(create_topics, "_CHUNK_TOPICS", 1)
    monkeypatch.setattr(delete_records, "_CHUNK_SIZE", 1)
    refused = 0 if is_retained else _REFUSED_TOPIC

    def codes(api: str, version: int, request: Struct, repository: object, call: str) -> list[int]:
        """Return the codes of a request during whose first change the right is revoked."""
        _grant(secured, f"All Topic {prefix}*")
        real = getattr(repository, call)

        def revoking(*arguments: object) -> object:
            monkeypatch.setattr(repository, call, real)
            if is_retained:
                _grant(secured, f"Read Group {api}")
            else:
                _revoke(secured)
            return real(*arguments)

        monkeypatch.setattr(repository, call, revoking)
        with Wire(secured.host_and_port, client_id="bob") as bob:
            response = bob.ask(api, version, request)
        if api == "delete_records":
            return [part.error_code for each in response.topics for part in each.partitions]
        items = vars(response)[_LISTS[api]]
        return [each.error_code for each in items]

    new = [Struct(name=name, num_partitions=1, replication_factor=-1) for name in names]
    created = codes("create_topics", 5, Struct(topics=new, timeout=0), catalog.topics, "create_many")
    assert created == [0, refused, refused]
    for name in names[1:]:
        if not is_retained:
            secured.create_topic(name)
    records = [Struct(name=name, partitions=[Struct(partition_index=0, offset=0)]) for name in names]
    request = Struct(topics=records, timeout=0)
    assert codes("delete_records", 1, request, catalog.retention, "advance_log_starts") == created
    added = Struct(topics=[Struct(name=name, count=2) for name in names], timeout=0)
    assert codes("create_partitions", 1, added, catalog.topics, "add_partitions") == created
    deleted = Struct(topic_names=names, timeout=0)
    assert codes("delete_topics", 5, deleted, catalog.topics, "delete") == created


def test_an_http_client_that_waits_for_a_record_gets_none(secured: BrokerThread) -> None:
    topic = secured.create_topic("w-http")
    _grant(secured, "Read Topic w-http", principal="ANONYMOUS")
    responses: list[httpx.Response] = []
    url = f"http://{secured.http_address}/v1/topics/w-http/partitions/0/records"

    def read() -> None:
        with httpx.Client(timeout=240, trust_env=False) as http:
            responses.append(http.get(url, params={"max_wait_ms": 60_000}))

    reading = Work(read)
    until(lambda: secured.agent.data.commit_notifier.has_waiters)
    _revoke(secured, "ANONYMOUS")
    parts = [Struct(index=0, records=bytes(encode_batch([1], [b"k"], [b"secret"])))]
    data = [Struct(name=topic.name, partition_data=parts)]
    request = Struct(transactional_id=None, acks=-1, timeout=60_000, topic_data=data)
    with Wire(secured.host_and_port, client_id="admin") as admin:
        response = admin.ask("produce", 9, request)
        assert response.responses[0].partition_responses[0].error_code == 0
    reading.finish()
    assert responses[0].status_code == 403
    assert b"secret" not in responses[0].content


def test_other_acls_that_still_allow_a_request_do_not_end_it(secured: BrokerThread) -> None:
    group = "g-other-acls"
    _grant(secured, f"Read Group {group}")
    with Wire(secured.host_and_port, client_id="bob") as bob:
        joining = _Waiting(secured, bob, "join_group", 3, _join(group, "", b"of bob"))
        _grant(secured, "Read Topic other")
        assert joining.finish().error_code == 0


def test_a_fetch_is_not_redirected_after_its_right_has_ended(
    start_broker: Callable[..., BrokerThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The redirect to another agent has the ends of the log."""
    racks = iter("ab")
    first, _ = two_brokers(
        lambda: start_broker(rack=next(racks), authorizer_enable=True, super_users="User:admin", **NO_EXPIRY)
    )
    topic = first.create_topic("w-racks")
    _grant(first, "Read Topic w-racks", principal="ANONYMOUS")
    states = first.catalog.topics.states

    def revoked(ids: Sequence[PartitionId]) -> Sequence[PartitionState]:
        _revoke(first, "ANONYMOUS")
        return states(ids)

    part = Struct(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = Struct(
        replica_id=-1,
        max_wait=0,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[Struct(topic=topic.name, partitions=[part])],
        rack_id="b",
    )
    with Wire(first.host_and_port) as wire:
        redirected = wire.ask("fetch", 12, request).responses[0].partitions[0]
        assert (redirected.error_code, redirected.high_watermark) == (0, 0)
        assert redirected.preferred_read_replica >= 0
        monkeypatch.setattr(first.catalog.topics, "states", revoked)
        refused = wire.ask("fetch", 12, request).responses[0].partitions[0]
        assert (refused.error_code, refused.high_watermark) == (_REFUSED_TOPIC, -1)
        assert refused.preferred_read_replica == -1
