"""Random transactions over a local and an object topic against a model, while markers are late or repeated.

One producer uses transactions of version 1, whose epoch stays, and one those of KIP-890. Earlier producers
go on writing and ending. The leader's look for markers, and their completion in the catalog, fail at times.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from typing_extensions import override

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from object_format.record_batch.headers import iter_headers
from object_format.record_batch.records import decode_batch, encode_batch
from tests.agent.kafka.waiting import until
from tests.agent.local_topics.transactions.test_transaction_races import Scene, Table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from catalog.open import Catalog
    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration
_NAMES = ("version-1", "version-2")
_KINDS = ("local", "object")
_READ_COMMITTED = 1
_numbers = count()
_REFUSED = {
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.invalid_txn_state,
    ErrorCode.producer_fenced,
}
_WAITS = {ErrorCode.concurrent_transactions, ErrorCode.request_timed_out}


class _Producer(NamedTuple):
    """Identity of a producer, and its next sequence number by topic."""

    name: str
    producer_id: int
    producer_epoch: int
    sequences: dict[str, int]


@dataclass
class _Transaction:
    """A transaction of the model: None while it is ongoing, then True if it was committed."""

    outcome: bool | None = None


@dataclass
class _Topic:
    """A topic of the model: values in log order with their transactions."""

    name: str
    values: list[tuple[bytes, _Transaction]] = field(default_factory=list)

    def committed(self) -> list[bytes]:
        """Return the values that a reader of committed records gets."""
        found = []
        for value, transaction in self.values:
            if transaction.outcome is None:
                break
            if transaction.outcome:
                found.append(value)
        return found


class LocalTransactionMachine(RuleBasedStateMachine):
    """Two transactional ids that write to a local and an object topic."""

    scene: Scene

    def __init__(self) -> None:
        super().__init__()
        number = next(_numbers)
        self.table = Table(self.scene.catalog)
        self.scene.use(self.table)
        self.wire = self.scene.wire()
        self.topics = {kind: _Topic(f"{kind}-{number}") for kind in _KINDS}
        for kind, topic in self.topics.items():
            self.scene.broker.create_topic(topic.name, 1, storage_mode=kind)
        self.ids = {name: f"{name}-{number}" for name in _NAMES}
        self.current: dict[str, _Producer] = {}
        self.ongoing: dict[str, _Transaction] = {}
        self.zombies: list[tuple[_Producer, _Transaction | None]] = []
        self.values = count()
        for name in _NAMES:
            self.initialize(name)

    @override
    def teardown(self) -> None:
        for name in list(self.ongoing):
            self.end(name, commits=True)
        self.release()
        self.compare()
        self.wire.socket.close()

    def _request(self, producer: _Producer, **fields: object) -> Struct:
        return Struct(
            transactional_id=self.ids[producer.name],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            **fields,
        )

    @rule(name=st.sampled_from(_NAMES))
    def initialize(self, name: str) -> None:
        request = Struct(
            transactional_id=self.ids[name], transaction_timeout=600_000, producer_id=-1, producer_epoch=-1
        )
        found = self.wire.ask("init_producer_id", 4, request)
        assert found.error_code == ErrorCode.none
        aborted = self.ongoing.pop(name, None)
        if aborted is not None:
            aborted.outcome = False
        if name in self.current:
            self.zombies.append((self.current[name], aborted))
        self.current[name] = _Producer(name, found.producer_id, found.producer_epoch, {})
        self._settle()

    def _settle(self) -> None:
        """Wait for the markers that can be written, so that the rules do not depend on time."""
        if self.table.finds_markers and self.table.completes:
            until(lambda: not self.scene.pending())

    def _add(self, producer: _Producer, topic: str) -> int:
        topics = [Struct(name=topic, partitions=[0])]
        early = {
            "v3_and_below_transactional_id": self.ids[producer.name],
            "v3_and_below_producer_id": producer.producer_id,
            "v3_and_below_producer_epoch": producer.producer_epoch,
            "v3_and_below_topics": topics,
        }
        response = self.wire.ask("add_partitions_to_txn", 3, Struct(**early))
        return int(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def _produce(self, producer: _Producer, topic: str, value: bytes) -> int:
        sequence = producer.sequences.get(topic, 0)
        identity = (producer.producer_id, producer.producer_epoch, sequence)
        batch = encode_batch([1], [None], [value], producer=identity, is_transactional=True)
        request = Struct(
            transactional_id=self.ids[producer.name],
            acks=-1,
            timeout=600_000,
            topic_data=[Struct(name=topic, partition_data=[Struct(index=0, records=batch)])],
        )
        version = 11 if producer.name == "version-1" else 12
        response = self.wire.ask("produce", version, request).responses[0].partition_responses[0]
        return int(response.error_code)

    @rule(name=st.sampled_from(_NAMES), kind=st.sampled_from(_KINDS))
    def write(self, name: str, kind: str) -> None:
        producer, topic = self.current[name], self.topics[kind]
        value = b"%d" % next(self.values)
        if name == "version-1":
            code = self._add(producer, topic.name)
            if code in _WAITS:
                assert kind == "local"
                return
            assert code == ErrorCode.none
            transaction = self.ongoing.setdefault(name, _Transaction())
            assert self._produce(producer, topic.name, value) == ErrorCode.none
        else:
            code = self._produce(producer, topic.name, value)
            if code in _WAITS:
                assert kind == "local"
                return
            assert code == ErrorCode.none
            transaction = self.ongoing.setdefault(name, _Transaction())
        producer.sequences[topic.name] = producer.sequences.get(topic.name, 0) + 1
        topic.values.append((value, transaction))

    @precondition(lambda self: self.zombies)
    @rule(data=st.data(), kind=st.sampled_from(_KINDS))
    def write_as_zombie(self, data: st.DataObject, kind: str) -> None:
        """As in Kafka, a log takes late batches until it has the marker; they share its outcome."""
        zombie, transaction = data.draw(st.sampled_from(self.zombies))
        topic = self.topics[kind]
        if zombie.name == "version-1":
            assert self._add(zombie, topic.name) in _REFUSED
        value = b"zombie %d" % next(self.values)
        code = self._produce(zombie, topic.name, value)
        if code in _REFUSED:
            return
        if code in _WAITS:
            assert kind == "local"
            return
        assert code == ErrorCode.none
        assert kind == "local"
        assert not (self.table.finds_markers and self.table.completes)
        assert transaction is not None
        assert topic.name in zombie.sequences
        zombie.sequences[topic.name] += 1
        topic.values.append((value, transaction))

    @precondition(lambda self: self.ongoing)
    @rule(data=st.data(), commits=st.booleans())
    def end_one(self, data: st.DataObject, *, commits: bool) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.ongoing))), commits=commits)

    def end(self, name: str, *, commits: bool) -> None:
        """End the ongoing transaction of a transactional id."""
        producer = self.current[name]
        version = 4 if name == "version-1" else 5
        while True:
            ended = self.wire.ask("end_txn", version, self._request(producer, committed=commits))
            if ended.error_code != ErrorCode.concurrent_transactions:  # the loop has stalled just before
                break
            time.sleep(0.05)
        assert ended.error_code == ErrorCode.none
        transaction = self.ongoing.pop(name)
        transaction.outcome = commits
        if name == "version-2":
            self.zombies.append((producer, transaction))
            self.current[name] = _Producer(name, ended.producer_id, ended.producer_epoch, {})
        self._settle()

    @rule(finds_markers=st.booleans(), completes=st.booleans())
    def disturb(self, *, finds_markers: bool, completes: bool) -> None:
        self.table.finds_markers, self.table.completes = finds_markers, completes
        if finds_markers and completes:
            self.release()

    @rule()
    def release(self) -> None:
        self.table.finds_markers = self.table.completes = True
        self.scene.broker.agent.data.local_logs.notify_markers()
        until(lambda: not self.scene.pending())

    @rule()
    def compare(self) -> None:
        """Compare what readers of committed records see; the local topic shows a part while markers wait."""
        is_complete = self.table.finds_markers and not self.scene.pending()
        for kind, topic in self.topics.items():
            found, expected = self._read(topic.name), topic.committed()
            if kind == "object" or is_complete:
                assert found == expected
            else:
                assert found == expected[: len(found)]

    def _read(self, topic: str) -> list[bytes]:
        values: list[bytes] = []
        position = 0
        while True:
            partition = Struct(
                partition=0, fetch_offset=position, partition_max_bytes=1 << 20, current_leader_epoch=-1
            )
            request = Struct(
                replica_id=-1,
                max_wait=0,
                min_bytes=1,
                max_bytes=1 << 20,
                isolation_level=_READ_COMMITTED,
                session_id=0,
                session_epoch=-1,
                topics=[Struct(topic=topic, partitions=[partition])],
                forgotten_topics_data=[],
                rack_id="",
            )
            response = self.wire.ask("fetch", 11, request).responses[0].partitions[0]
            if not response.records:
                return values
            # A Kafka consumer drops from the first offset of an aborted transaction to its marker.
            starts = {(each.producer_id, each.first_offset) for each in response.aborted_transactions or ()}
            dropped: set[int] = set()
            for place, header in iter_headers(response.records):
                position = header.next_offset
                begun = {item for item in starts if item[1] <= header.base_offset}
                starts -= begun
                dropped |= {producer_id for producer_id, _ in begun}
                if header.is_control:
                    dropped.discard(header.producer_id)
                elif header.producer_id not in dropped:
                    values.append(decode_batch(response.records, place).record(0).value or b"")


def test_readers_see_whole_transactions_of_local_and_object_topics(
    start_broker: Callable[..., BrokerThread], catalog: Catalog, tmp_path: Path
) -> None:
    broker = start_broker(local_directories=(tmp_path / "disk",))

    class Machine(LocalTransactionMachine):
        scene = Scene(lambda: broker, catalog, broker, Table(catalog))

    run_state_machine_as_test(
        Machine,
        settings=settings(
            deadline=None,
            max_examples=20,
            stateful_step_count=30,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
