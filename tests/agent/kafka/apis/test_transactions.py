"""Scripted requests of transactional producers, and what readers of both isolation levels get."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from uuid import uuid4

import httpx
import pytest

from agent.groups.consumer.topics import compile_pattern
from agent.kafka.apis.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
    txn_offset_commit,
)
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from catalog.groups.offsets import CommittedOffset
from catalog.model import PartitionId
from catalog.transactions.rules import ProducerIdentity
from object_format.record_batch.headers import iter_headers
from object_format.record_batch.records import decode_batches, encode_batch
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.groups.consumer.topics import Pattern
    from agent.kafka.api_definition import Api
    from tests.agent.kafka.brokers import BrokerThread

_TOPIC, _ID, _GROUP = "granite", "t", "g"
_LAST_OF_VERSION_1, _FIRST_OF_VERSION_2 = 11, 12  # of Produce
_END_1, _END_2 = 4, 5
_READ_COMMITTED = 1


@pytest.fixture
def wire(broker: BrokerThread) -> Iterator[Wire]:
    broker.create_topic(_TOPIC, partitions=2)
    with Wire(broker.host_and_port) as opened:
        yield opened


def versions(api: Api) -> range:
    return range(api.min_version, api.max_version + 1)


def init(
    wire: Wire,
    version: int = 4,
    expected: tuple[int, int] = (-1, -1),
    timeout: int = 60_000,
    name: str = _ID,
) -> Struct:
    request = Struct(
        transactional_id=name,
        transaction_timeout=timeout,
        producer_id=expected[0],
        producer_epoch=expected[1],
    )
    return wire.ask("init_producer_id", version, request)


def identity(producer: Struct, name: str = _ID) -> dict[str, object]:
    return {
        "transactional_id": name,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
    }


def add(
    wire: Wire,
    producer: Struct,
    *partitions: int,
    version: int = 3,
    topic: str = _TOPIC,
    verify_only: bool = False,
    name: str = _ID,
) -> list[int]:
    early = {f"v3_and_below_{field}": value for field, value in identity(producer, name).items()}
    topics = [Struct(name=topic, partitions=list(partitions))]
    transaction = Struct(**identity(producer, name), verify_only=verify_only, topics=topics)
    request = Struct(**early, v3_and_below_topics=topics, transactions=[transaction])
    response = wire.ask("add_partitions_to_txn", version, request)
    if version >= 4:
        (added,) = response.results_by_transaction[0].topic_results
    else:
        (added,) = response.results_by_topic_v3_and_below
    return [each.partition_error_code for each in added.results_by_partition]


def produce(
    wire: Wire,
    producer: Struct,
    first: int,
    *values: bytes,
    version: int = _LAST_OF_VERSION_1,
    index: int = 0,
    name: str = _ID,
) -> Struct:
    count = len(values)
    batch = encode_batch(
        [1] * count,
        [b"key"] * count,
        values,
        producer=(producer.producer_id, producer.producer_epoch, first),
        is_transactional=True,
    )
    partition = Struct(index=index, records=batch)
    request = Struct(
        transactional_id=name,
        acks=-1,
        timeout=600_000,
        topic_data=[Struct(name=_TOPIC, partition_data=[partition])],
    )
    found: Struct = wire.ask("produce", version, request).responses[0].partition_responses[0]
    return found


def end(wire: Wire, producer: Struct, *, commits: bool, version: int = _END_1, name: str = _ID) -> Struct:
    """End a transaction as clients do: repeat the request if the agent cannot date it.

    For two seconds after a stall of its event loop, an agent takes a request for one from before the stall.
    """
    while True:
        ended = end_once(wire, producer, commits=commits, version=version, name=name)
        if ended.error_code != ErrorCode.concurrent_transactions:
            return ended
        time.sleep(0.05)


def end_once(
    wire: Wire, producer: Struct, *, commits: bool, version: int = _END_1, name: str = _ID
) -> Struct:
    ended: Struct = wire.ask("end_txn", version, Struct(**identity(producer, name), committed=commits))
    return ended


def fetch(wire: Wire, offset: int, *, isolation: int = _READ_COMMITTED, max_wait: int = 0) -> Struct:
    partition = Struct(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=-1)
    request = Struct(
        replica_id=-1,
        max_wait=max_wait,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=isolation,
        session_id=0,
        session_epoch=-1,
        topics=[Struct(topic=_TOPIC, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
    )
    found: Struct = wire.ask("fetch", 11, request).responses[0].partitions[0]
    return found


def offsets(wire: Wire, isolation: int, timestamp: int = -1, index: int = 0) -> int:
    partition = Struct(partition_index=index, current_leader_epoch=-1, timestamp=timestamp)
    request = Struct(
        replica_id=-1, isolation_level=isolation, topics=[Struct(name=_TOPIC, partitions=[partition])]
    )
    return int(wire.ask("list_offsets", 7, request).topics[0].partitions[0].offset)


def commit_offset(
    wire: Wire, producer: Struct, offset: int, version: int, member: tuple[str, int] = ("", -1)
) -> int:
    part = Struct(
        partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata="m"
    )
    request = Struct(
        **identity(producer),
        group_id=_GROUP,
        generation_id=member[1],
        member_id=member[0],
        group_instance_id=None,
        topics=[Struct(name=_TOPIC, partitions=[part])],
    )
    return int(wire.ask("txn_offset_commit", version, request).topics[0].partitions[0].error_code)


def committed_offset(wire: Wire, *, require_stable: bool) -> tuple[int, int]:
    request = Struct(
        group_id=_GROUP, topics=[Struct(name=_TOPIC, partition_indexes=[0])], require_stable=require_stable
    )
    found = wire.ask("offset_fetch", 7, request).topics[0].partitions[0]
    return found.error_code, found.committed_offset


def test_a_transaction_of_version_1(wire: Wire) -> None:
    producer = init(wire)
    assert (producer.error_code, producer.producer_epoch) == (ErrorCode.none, 0)
    refused = produce(wire, producer, 0, b"early")
    assert refused.error_code == ErrorCode.invalid_txn_state
    assert add(wire, producer, 0, 1) == [ErrorCode.none] * 2
    assert produce(wire, producer, 0, b"a", b"b").base_offset == 0
    assert (offsets(wire, 0), offsets(wire, _READ_COMMITTED)) == (2, 0)
    assert [end(wire, producer, commits=True).error_code for _ in range(2)] == [ErrorCode.none] * 2
    assert end(wire, producer, commits=False).error_code == ErrorCode.invalid_txn_state
    assert (offsets(wire, 0), offsets(wire, _READ_COMMITTED)) == (3, 3)


def test_a_transaction_of_version_2(wire: Wire) -> None:
    producer = init(wire)
    assert produce(wire, producer, 0, b"a", version=_FIRST_OF_VERSION_2).base_offset == 0
    for ended in [end(wire, producer, commits=True, version=_END_2) for _ in range(2)]:
        assert (ended.error_code, ended.producer_id) == (ErrorCode.none, producer.producer_id)
        assert ended.producer_epoch == 1
    ended = Struct(producer_id=producer.producer_id, producer_epoch=1)
    late = produce(wire, producer, 1, b"late", version=_FIRST_OF_VERSION_2)
    assert late.error_code == ErrorCode.invalid_producer_epoch
    assert produce(wire, ended, 0, b"b", version=_FIRST_OF_VERSION_2).base_offset == 2
    assert end(wire, producer, commits=True, version=_END_2).error_code == ErrorCode.producer_fenced


def _produce_several(
    wire: Wire, version: int, name: str | None, *batches: tuple[Struct | None, int, int]
) -> list[int]:
    """Send a record to each partition with (producer or None, sequence, partition); return the errors."""
    parts = []
    for producer, sequence, index in batches:
        known = (
            (-1, -1, -1) if producer is None else (producer.producer_id, producer.producer_epoch, sequence)
        )
        is_transactional = producer is not None
        batch = encode_batch([1], [b"k"], [b"v"], producer=known, is_transactional=is_transactional)
        parts.append(Struct(index=index, records=batch))
    topics = [Struct(name=_TOPIC, partition_data=parts)]
    request = Struct(transactional_id=name, acks=-1, timeout=600_000, topic_data=topics)
    response = wire.ask("produce", version, request)
    return [each.error_code for each in response.responses[0].partition_responses]


@pytest.mark.parametrize("version", [_LAST_OF_VERSION_1, _FIRST_OF_VERSION_2])
def test_a_batch_must_belong_to_the_transactional_id_of_its_request(wire: Wire, version: int) -> None:
    """A producer id can be read in any batch; the right to its transactional id is checked by name."""
    producer, other = init(wire), init(wire, name="mine")
    refused = ErrorCode.invalid_producer_id_mapping
    for name in ("mine", "unknown", ""):
        assert _produce_several(wire, version, name, (producer, 0, 0)) == [refused]
    add(wire, producer, 0, 1)
    assert _produce_several(wire, version, "mine", (producer, 0, 0), (None, 0, 1)) == [refused, 0]
    assert _produce_several(wire, version, _ID, (producer, 0, 0), (other, 0, 1)) == [refused] * 2
    assert offsets(wire, 0) == 0
    assert _produce_several(wire, version, _ID, (producer, 0, 0), (None, 0, 1)) == [0, 0]


def test_a_refused_batch_does_not_begin_a_transaction(wire: Wire) -> None:
    producer = init(wire)
    init(wire, name="mine")
    refused = _produce_several(wire, _FIRST_OF_VERSION_2, "mine", (producer, 0, 0))
    assert refused == [ErrorCode.invalid_producer_id_mapping]
    assert end(wire, producer, commits=True).error_code == ErrorCode.invalid_txn_state


@pytest.mark.parametrize("version", [_LAST_OF_VERSION_1, _FIRST_OF_VERSION_2])
def test_a_request_with_transactional_batches_must_name_its_transactional_id(
    wire: Wire, version: int
) -> None:
    producer = init(wire)
    add(wire, producer, 0)
    refused = ErrorCode.transactional_id_authorization_failed
    assert _produce_several(wire, version, None, (None, 0, 1), (producer, 0, 0)) == [refused] * 2
    nobody = Struct(producer_id=-1, producer_epoch=-1)
    assert _produce_several(wire, version, None, (nobody, -1, 0)) == [refused]
    mapping = ErrorCode.invalid_producer_id_mapping
    assert _produce_several(wire, version, _ID, (nobody, -1, 0)) == [mapping]
    assert offsets(wire, 0) == 0


def test_readers_of_committed_records_learn_which_transactions_were_aborted(wire: Wire) -> None:
    producer = init(wire)
    for number, commits in enumerate((False, True)):
        add(wire, producer, 0)
        produce(wire, producer, number, b"value")
        end(wire, producer, commits=commits)
    for max_wait in (0, 100):
        found = fetch(wire, 0, max_wait=max_wait)
        aborted = [(each.producer_id, each.first_offset) for each in found.aborted_transactions]
        assert aborted == [(producer.producer_id, 0)]
        assert (found.last_stable_offset, found.high_watermark) == (4, 4)
    control = fetch(wire, 1).records
    _, header = next(iter_headers(control))
    assert (header.base_offset, header.is_control, header.is_transactional) == (1, True, True)
    assert (header.producer_id, header.base_sequence) == (producer.producer_id, -1)
    (columns, *_) = decode_batches(control, control=True)
    record = columns.record(0)
    assert (record.key, record.value) == (bytes(4), bytes(6))
    assert fetch(wire, 0, isolation=0).aborted_transactions in (None, [], ())


def test_memory_gets_no_end_of_a_transaction_from_a_history_that_has_ended(
    wire: Wire, broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response to the end arrives after a failover, and the new epoch may lack the end."""
    key = PartitionId(broker.catalog.topics.get(_TOPIC).topic_id, 0)
    producer, found = init(wire), []
    for number in range(2):
        add(wire, producer, 0)
        produce(wire, producer, number, b"value")
        end(wire, producer, commits=True)
        found.append(broker.agent.data.tail.read(key, 2 * number + 1, 1 << 20) is not None)
        monkeypatch.setattr(broker.agent.resources.epoch, "current", 7)
    assert found == [True, False]


def test_readers_of_committed_records_stop_at_an_open_transaction(wire: Wire) -> None:
    producer = init(wire)
    add(wire, producer, 0)
    produce(wire, producer, 0, b"open")
    for max_wait in (0, 50):
        found = fetch(wire, 0, max_wait=max_wait)
        assert (found.last_stable_offset, found.high_watermark, len(found.records or b"")) == (0, 1, 0)
    assert len(fetch(wire, 0, isolation=0).records) > 0
    for timestamp in (1, -3):  # the record's, and the largest
        assert [offsets(wire, isolation, timestamp) for isolation in (0, _READ_COMMITTED)] == [0, -1]


@pytest.mark.parametrize("version", versions(init_producer_id.API))
def test_a_producer_that_was_replaced_is_fenced(wire: Wire, version: int) -> None:
    before = init(wire, version)
    assert init(wire, version).producer_epoch == before.producer_epoch + 1
    if version >= 3:
        code = init(wire, version, expected=(before.producer_id, before.producer_epoch)).error_code
        fenced = ErrorCode.producer_fenced if version >= 4 else ErrorCode.invalid_producer_epoch
        assert code == fenced


@pytest.mark.parametrize("version", versions(txn_offset_commit.API))
def test_offsets_of_a_replaced_producer_have_kafkas_code(wire: Wire, version: int) -> None:
    """PRODUCER_FENCED is an error here after which a producer of librdkafka aborts and continues."""
    zombie = init(wire)
    init(wire)
    assert commit_offset(wire, zombie, 5, version) == ErrorCode.invalid_producer_epoch


def test_a_producer_continues_after_an_error_with_the_next_epoch(wire: Wire) -> None:
    producer = init(wire)
    expected = producer.producer_id, producer.producer_epoch
    for _ in range(2):  # the second request is a retry
        again = init(wire, expected=expected)
        assert (again.producer_id, again.producer_epoch) == (expected[0], expected[1] + 1)
    assert init(wire, expected=(expected[0], -1)).error_code == ErrorCode.invalid_request


def test_timeouts_are_limited(wire: Wire) -> None:
    for timeout in (0, -1, 900_001):
        assert init(wire, timeout=timeout).error_code == ErrorCode.invalid_transaction_timeout


@pytest.mark.parametrize("version", versions(add_partitions_to_txn.API))
def test_partitions_are_added_all_or_none(wire: Wire, version: int) -> None:
    producer = init(wire)
    unknown, not_attempted = ErrorCode.unknown_topic_or_partition, ErrorCode.operation_not_attempted
    assert add(wire, producer, 0, 9, version=version) == [not_attempted, unknown]
    assert produce(wire, producer, 0, b"a").error_code == ErrorCode.invalid_txn_state
    assert add(wire, producer, 0, version=version, topic="marble") == [unknown]
    old = Struct(producer_id=producer.producer_id, producer_epoch=7)
    fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
    assert add(wire, old, 0, version=version) == [fenced]
    other = Struct(producer_id=producer.producer_id + 1, producer_epoch=0)
    assert add(wire, other, 0, version=version) == [ErrorCode.invalid_producer_id_mapping]


def test_added_partitions_are_verified(wire: Wire) -> None:
    producer = init(wire)
    add(wire, producer, 0)
    found = add(wire, producer, 0, 1, version=5, verify_only=True)
    assert found == [ErrorCode.none, ErrorCode.transaction_abortable]


def test_a_transaction_that_began_after_a_stall_ends_when_its_client_repeats_the_request(
    wire: Wire, broker: BrokerThread
) -> None:
    """The agent cannot know that this request arrived after the stall."""
    producer = init(wire)
    time.sleep(0.5)  # the agent notes that its loop runs
    begun = time.monotonic()
    broker._loop.call_soon_threadsafe(time.sleep, 1)
    add(wire, producer, 0)
    produce(wire, producer, 0, b"x")
    first = end_once(wire, producer, commits=True).error_code
    # On a machine that stalls, the two seconds after the stall may have passed.
    assert first == ErrorCode.concurrent_transactions or time.monotonic() - begun > 2.5
    assert end(wire, producer, commits=True).error_code == ErrorCode.none
    assert offsets(wire, _READ_COMMITTED) == 2


def test_an_end_that_a_frozen_agent_had_not_read_does_not_end_the_next_transaction(
    wire: Wire, broker: BrokerThread
) -> None:
    """Its client has ended the transaction at another agent meanwhile, and begun the next one."""
    producer = init(wire)
    add(wire, producer, 0)
    produce(wire, producer, 0, b"first")
    time.sleep(0.5)  # the agent notes that its loop runs
    gate, transactions = threading.Event(), broker.catalog.transactions
    known = ProducerIdentity(producer.producer_id, producer.producer_epoch)
    with ThreadPoolExecutor(1) as pool:
        broker._loop.call_soon_threadsafe(gate.wait)
        late = pool.submit(end_once, wire, producer, commits=True)
        try:
            time.sleep(1)
            transactions.end(_ID, known, commits=True)
            topic = broker.catalog.topics.get(_TOPIC)
            transactions.add_partitions(_ID, known, [PartitionId(topic.topic_id, 0)])
        finally:
            gate.set()
        assert late.result().error_code == ErrorCode.concurrent_transactions
    ended = transactions.end(_ID, known, commits=False)
    assert [each.control and each.control.commits for each in ended.controls] == [False]


def test_offsets_that_a_frozen_agent_had_not_read_are_not_those_of_the_next_transaction(
    wire: Wire, broker: BrokerThread
) -> None:
    """Its client has repeated the request at another agent, which coordinated the group meanwhile."""
    producer = init(wire)
    time.sleep(0.5)  # the agent notes that its loop runs
    gate, catalog = threading.Event(), broker.catalog
    known = ProducerIdentity(producer.producer_id, producer.producer_epoch)
    topic, claim = catalog.topics.get(_TOPIC), uuid4()

    def commit_elsewhere(offset: int) -> None:
        committed = CommittedOffset(topic_id=topic.topic_id, partition=0, offset=offset)
        catalog.transactions.add_group(_ID, known, _GROUP)
        catalog.transactions.add_offsets(_ID, known, (_GROUP, claim, None), [committed], adds_group=False)

    with ThreadPoolExecutor(1) as pool:
        broker._loop.call_soon_threadsafe(gate.wait)
        late = pool.submit(commit_offset, wire, producer, 5, _END_1)
        try:
            time.sleep(1)
            catalog.groups.claim(_GROUP, claim, create=True)
            commit_elsewhere(5)
            catalog.transactions.end(_ID, known, commits=True)
            commit_elsewhere(9)
        finally:
            gate.set()
        assert late.result() == ErrorCode.coordinator_load_in_progress
    catalog.transactions.end(_ID, known, commits=True)
    assert committed_offset(wire, require_stable=True) == (ErrorCode.none, 9)


@pytest.mark.parametrize("version", versions(end_txn.API))
def test_an_end_without_a_transaction_is_refused(wire: Wire, version: int) -> None:
    producer = init(wire)
    assert end(wire, producer, commits=True, version=version).error_code == ErrorCode.invalid_txn_state
    unknown = Struct(producer_id=producer.producer_id + 1, producer_epoch=0)
    refused = end(wire, unknown, commits=True, version=version)
    assert refused.error_code == ErrorCode.invalid_producer_id_mapping


def test_offsets_of_a_former_member_are_refused_with_an_error_that_lets_the_producer_abort(
    wire: Wire,
) -> None:
    """Other errors, such as STALE_MEMBER_EPOCH, are fatal to Java's producer."""
    producer = init(wire)
    refused = ErrorCode.illegal_generation
    assert commit_offset(wire, producer, 0, _END_2, ("m", 3)) == refused
    join = Struct(
        group_id=_GROUP,
        member_id="m",
        member_epoch=0,
        instance_id=None,
        rack_id=None,
        rebalance_timeout=60_000,
        subscribed_topic_names=[_TOPIC],
        subscribed_topic_regex=None,
        server_assignor=None,
        topic_partitions=[],
    )
    epoch = wire.ask("consumer_group_heartbeat", 1, join).member_epoch
    assert commit_offset(wire, producer, 0, _END_2, ("m", epoch + 1)) == refused
    assert commit_offset(wire, producer, 0, _END_2, ("m", epoch)) == ErrorCode.none


@pytest.mark.parametrize("version", versions(txn_offset_commit.API))
def test_offsets_become_stable_with_their_transaction(wire: Wire, version: int) -> None:
    producer = init(wire)
    if version < 5:
        assert commit_offset(wire, producer, 5, version) == ErrorCode.invalid_txn_state
        group = Struct(**identity(producer), group_id=_GROUP)
        for number in versions(add_offsets_to_txn.API):
            assert wire.ask("add_offsets_to_txn", number, group).error_code == ErrorCode.none
    assert commit_offset(wire, producer, 5, version) == ErrorCode.none
    assert committed_offset(wire, require_stable=True) == (ErrorCode.unstable_offset_commit, -1)
    assert committed_offset(wire, require_stable=False) == (ErrorCode.none, -1)
    end(wire, producer, commits=True)
    assert committed_offset(wire, require_stable=True) == (ErrorCode.none, 5)


def test_http_readers_choose_the_isolation_level(wire: Wire, broker: BrokerThread) -> None:
    producer = init(wire)
    for number, commits in enumerate((False, True)):
        add(wire, producer, 0)
        produce(wire, producer, number, b"%d" % number)
        end(wire, producer, commits=commits)
    add(wire, producer, 0)
    produce(wire, producer, 2, b"2")
    url = f"http://{broker.http_address}/v1/topics/{_TOPIC}/partitions/0/records"
    for isolation, expected in (("read_uncommitted", ["0", "1", "2"]), ("read_committed", ["1"])):
        values, offset = [], 0
        while True:
            body = httpx.get(url, params={"isolation": isolation, "offset": offset}, timeout=60).json()
            if not body["records"]:
                break
            values += [record["value"] for record in body["records"]]
            offset = body["next_offset"]
        assert values == expected


def test_a_pattern_is_matched_in_bounded_steps_outside_the_event_loop(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(wire)
    module = "agent.kafka.apis.transactions.list_transactions"
    threads = set()

    def compile_noted(pattern: str) -> Pattern:
        compiled = compile_pattern(pattern)

        class Noted:
            programsize = compiled.programsize

            def fullmatch(self, text: str) -> object | None:
                threads.add(threading.current_thread().name.partition("_")[0])
                return compiled.fullmatch(text)

        return Noted()

    monkeypatch.setattr(f"{module}.compile_pattern", compile_noted)
    request = Struct(
        state_filters=[], producer_id_filters=[], duration_filter=-1, transactional_id_pattern=".*"
    )
    response = wire.ask("list_transactions", 2, request)
    assert [each.transactional_id for each in response.transaction_states] == [_ID]
    assert threads == {"siltstone-parsing"}
    monkeypatch.setattr(f"{module}.MAX_MATCH_STEPS", 2)
    response = wire.ask("list_transactions", 2, request)
    assert response.error_code == ErrorCode.invalid_regular_expression
    assert not response.transaction_states


def test_transactions_are_listed_and_described(wire: Wire) -> None:
    producer = init(wire)
    add(wire, producer, 0, 1)
    produce(wire, producer, 0, b"a")
    described = wire.ask("describe_transactions", 0, Struct(transactional_ids=[_ID, "other", ""]))
    ongoing, unknown, empty = described.transaction_states
    assert (ongoing.transaction_state, ongoing.transaction_timeout) == ("Ongoing", 60_000)
    assert [(each.topic, list(each.partitions)) for each in ongoing.topics] == [(_TOPIC, [0, 1])]
    assert ongoing.transaction_start_time > 0
    codes = [each.error_code for each in (unknown, empty)]
    assert codes == [ErrorCode.transactional_id_not_found, ErrorCode.invalid_request]

    def listed(version: int = 2, unknown: Sequence[str] = (), **filters: object) -> list[tuple[str, str]]:
        everything = {
            "state_filters": [],
            "producer_id_filters": [],
            "duration_filter": -1,
            "transactional_id_pattern": None,
        }
        response = wire.ask("list_transactions", version, Struct(**{**everything, **filters}))
        assert list(response.unknown_state_filters) == list(unknown)
        return [(each.transactional_id, each.transaction_state) for each in response.transaction_states]

    found = [(_ID, "Ongoing")]
    assert [listed(version) for version in (0, 1, 2)] == [found] * 3
    mine = [producer.producer_id]
    assert listed(unknown=["Odd"], state_filters=["Ongoing", "Odd"], producer_id_filters=mine) == found
    assert listed(state_filters=["Empty"]) == []
    assert listed(duration_filter=10_000_000) == []
    assert (listed(transactional_id_pattern="t*"), listed(transactional_id_pattern="x+")) == (found, [])
    topics = [Struct(name=_TOPIC, partition_indexes=[0])]
    (known,) = (
        wire.ask("describe_producers", 0, Struct(topics=topics)).topics[0].partitions[0].active_producers
    )
    assert known.current_txn_start_offset == 0


def test_an_administrator_aborts_a_transaction(wire: Wire) -> None:
    producer = init(wire)
    add(wire, producer, 0)
    produce(wire, producer, 0, b"a")

    def write(*, commits: bool = False) -> int:
        marker = Struct(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=commits,
            topics=[Struct(name=_TOPIC, partition_indexes=[0])],
            coordinator_epoch=0,
        )
        (result,) = wire.ask("write_txn_markers", 1, Struct(markers=[marker])).markers
        return int(result.topics[0].partitions[0].error_code)

    assert write(commits=True) == ErrorCode.invalid_request
    assert [write(), write()] == [ErrorCode.none, ErrorCode.invalid_producer_epoch]
    assert (offsets(wire, _READ_COMMITTED), end(wire, producer, commits=True).error_code) == (
        2,
        ErrorCode.producer_fenced,
    )
