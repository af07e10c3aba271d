"""Transactions of producers, with and without KIP-890, and producer ids and epochs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent.kafka.codec import Struct
from tests.agent.kafka.waiting import until
from tests.kafka_differences.session import (
    COMMITTED,
    EARLIEST,
    LATEST,
    UNCOMMITTED,
    code,
)

if TYPE_CHECKING:
    from tests.kafka_differences.session import Session


@dataclass(frozen=True, slots=True)
class Producer:
    """Identity of a transactional producer."""

    transactional_id: str
    id: int
    epoch: int

    def at(self, sequence: int) -> tuple[int, int, int]:
        """Return what a batch says about its producer."""
        return self.id, self.epoch, sequence

    def in_epoch(self, epoch: int) -> Producer:
        """Return the producer in another epoch."""
        return replace(self, epoch=epoch)

    def with_id(self, producer_id: int) -> Producer:
        """Return a producer of the same transactional id with another producer id."""
        return replace(self, id=producer_id)


def before_a_transaction(s: Session) -> None:
    """Requests about transactions that did not begin, and identities that no producer has."""
    topic, group, name = "before", "before", "before"
    s.create_topic(topic)
    stranger = Producer(name, 1, 0)
    _end(s, "end, unknown id", stranger, commit=True)
    _add_partitions(s, "add partitions, unknown id", stranger, topic)
    _add_offsets(s, "add offsets, unknown id", stranger, group)
    _init(s, "init, empty id", "")
    _init(s, "init, timeout 0", name, timeout=0)
    _init(s, "init, timeout above the maximum", name, timeout=2**31 - 1)
    _init(s, "init, producer id without epoch", name, current=(5, -1))
    _init(s, "init, epoch without producer id", name, current=(-1, 5))
    _init(s, "init, identity of an unknown id", "unknown", current=(123456, 3))
    producer = _init(s, "init", name)
    _end(s, "commit", producer, commit=True)
    _end(s, "abort", producer, commit=False)
    _add_partitions(s, "add an unknown partition", producer, topic, 0, 7)
    _add_partitions(s, "add an unknown topic", producer, "unknown")
    _add_partitions(s, "add, other producer id", producer.with_id(999_999), topic)
    _add_partitions(s, "add, later epoch", producer.in_epoch(9), topic)
    _add_partitions(s, "add in version 1, later epoch", producer.in_epoch(9), topic, version=1)
    _add_partitions(s, "verify", producer, topic, version=4, verify=True)
    s.produce("produce", topic, b"x", producer=producer.at(0), transactional_id=name)
    s.produce("produce 11", topic, b"x", producer=producer.at(0), transactional_id=name, version=11)
    _commit_offset(s, "commit an offset", producer, group, topic, 3)
    _commit_offset(s, "commit an offset in version 4", producer, group, topic, 3, version=4)


def without_kip_890(s: Session) -> None:
    """Clients that add partitions, and keep their epoch from one transaction to the next."""
    topic, name = "added", "added"
    s.create_topic(topic, 2)
    producer = _init(s, "init", name)
    _add_partitions(s, "add", producer, topic)
    _add_partitions(s, "verify an added and another one", producer, topic, 0, 1, version=4, verify=True)
    s.produce("produce", topic, b"1", b"2", producer=producer.at(0), transactional_id=name)
    s.produce("produce again", topic, b"1", b"2", producer=producer.at(0), transactional_id=name)
    s.produce("produce with a gap", topic, b"x", producer=producer.at(7), transactional_id=name)
    s.produce("produce, not added", topic, b"x", partition=1, producer=producer.at(0), transactional_id=name)
    later = producer.in_epoch(1)
    s.produce("produce, later epoch", topic, b"x", producer=later.at(0), transactional_id=name)
    _read(s, "ongoing", topic, is_ongoing=True)
    s.fetch("fetch committed behind the last stable offset", topic, 1, isolation=COMMITTED)
    _end(s, "abort", producer, commit=False)
    _end(s, "abort again", producer, commit=False)
    _end(s, "commit after the abort", producer, commit=True)
    _read(s, "aborted", topic)
    _add_partitions(s, "add again", producer, topic)
    s.produce("produce in the second", topic, b"3", producer=producer.at(2), transactional_id=name)
    _end(s, "commit", producer, commit=True)
    _end(s, "commit again", producer, commit=True)
    _end(s, "abort after the commit", producer, commit=False)
    _read(s, "committed", topic)


def offsets_in_transactions(s: Session) -> None:
    """Offsets of a group that are committed with a transaction, or not."""
    topic, group, name = "offsets-added", "offsets-added", "offsets-added"
    s.create_topic(topic, 2)
    producer = _init(s, "init", name)
    _add_offsets(s, "add", producer, group)
    _commit_offset(s, "commit", producer, group, topic, 5)
    _commit_offset(s, "unknown partition", producer, group, topic, 5, partition=9)
    _commit_offset(s, "unknown topic", producer, group, "unknown", 5)
    _commit_offset(s, "long metadata", producer, group, topic, 5, metadata="x" * 5000)
    _commit_offset(s, "unknown member", producer, group, topic, 5, generation=4, member="unknown")
    _commit_offset(s, "later epoch", producer.in_epoch(1), group, topic, 5)
    _commit_offset(s, "other producer id", producer.with_id(999_999), group, topic, 5)
    _commit_offset(s, "empty group", producer, "", topic, 5)
    s.commit("commit outside", group, topic, 2, partition=1)
    s.committed("meanwhile, stable", group, topic, 0, 1, require_stable=True)
    s.committed("meanwhile", group, topic, 0, 1)
    _end(s, "abort", producer, commit=False)
    s.committed("aborted", group, topic, 0, 1, require_stable=True)
    _add_offsets(s, "add again", producer, group)
    _commit_offset(s, "commit again", producer, group, topic, 6)
    _end(s, "end with a commit", producer, commit=True)
    s.committed("committed", group, topic, 0, 1, require_stable=True)


def fenced_producers(s: Session) -> None:
    """A second producer of an id replaces the first one, and its requests are refused."""
    topic, group, name = "fenced", "fenced", "fenced"
    s.create_topic(topic)
    first = _init(s, "init", name)
    _add_partitions(s, "add", first, topic)
    s.produce("produce", topic, b"1", producer=first.at(0), transactional_id=name)
    second = _init(s, "init while a transaction is ongoing", name)
    _read(s, "fenced", topic)
    _add_partitions(s, "add, fenced", first, topic)
    _add_partitions(s, "add in version 1, fenced", first, topic, version=1)
    _end(s, "end, fenced", first, commit=True)
    _end(s, "end in version 1, fenced", first, commit=True, version=1)
    _add_offsets(s, "add offsets, fenced", first, group)
    _add_offsets(s, "add offsets in version 1, fenced", first, group, version=1)
    s.produce("produce, fenced", topic, b"x", producer=first.at(1), transactional_id=name)
    _commit_offset(s, "commit an offset, fenced", first, group, topic, 5)
    _init(s, "init, epoch that no producer had", name, current=(first.id, 30))
    _init(s, "init in version 3, epoch that no producer had", name, current=(first.id, 30), version=3)
    _init(s, "init, other producer id", name, current=(first.id + 99, 0))
    third = _init(s, "init, current identity", name, current=(second.id, second.epoch))
    _init(s, "init again, replaced identity", name, current=(second.id, second.epoch))
    _add_partitions(s, "add to the third", third, topic)
    s.produce("produce in the third", topic, b"3", producer=third.at(0), transactional_id=name)
    _init(s, "init, current identity while a transaction is ongoing", name, current=(third.id, third.epoch))
    _read(s, "third", topic)


def with_kip_890(s: Session) -> None:
    """Clients whose batches and offsets begin a transaction, and whose epoch grows with its end."""
    topic, group, name = "kip-890", "kip-890", "kip-890"
    s.create_topic(topic, 2)
    first = _init(s, "init", name, version=5)
    second = _end(s, "abort without a transaction", first, commit=False, version=5)
    _end(s, "commit without a transaction", second, commit=True, version=5)
    s.produce("produce", topic, b"1", producer=second.at(0), transactional_id=name, version=12)
    _commit_offset(s, "commit an offset", second, group, topic, 5, version=5)
    s.committed("offsets meanwhile, stable", group, topic, require_stable=True)
    third = _end(s, "commit", second, commit=True, version=5)
    _end(s, "commit again", second, commit=True, version=5)
    _end(s, "abort after the commit", second, commit=False, version=5)
    s.committed("offsets after the commit", group, topic, require_stable=True)
    _read(s, "committed", topic)
    s.produce(
        "produce in the earlier epoch", topic, b"x", producer=second.at(1), transactional_id=name, version=12
    )
    _commit_offset(s, "commit an offset in the earlier epoch", second, group, topic, 9, version=5)
    s.produce("first sequence number 1", topic, b"x", producer=third.at(1), transactional_id=name, version=12)
    s.produce("first sequence number 0", topic, b"2", producer=third.at(0), transactional_id=name, version=12)
    fourth = _end(s, "abort", third, commit=False, version=5)
    _read(s, "aborted", topic)
    s.produce("produce outside", topic, b"a", partition=1, producer=fourth.at(0))
    s.produce(
        "produce after it", topic, b"b", partition=1, producer=fourth.at(1), transactional_id=name, version=12
    )
    _commit_offset(
        s,
        "commit an offset, unknown member",
        fourth,
        group,
        topic,
        5,
        version=5,
        generation=3,
        member="unknown",
    )
    _end(s, "commit in version 4", fourth, commit=True, version=4)


def mixed_batches(s: Session) -> None:
    """A producer with an open transaction writes batches that do not belong to it."""
    topic, name = "mixed", "mixed"
    s.create_topic(topic, 2)
    producer = _init(s, "init", name)
    _add_partitions(s, "add", producer, topic, 0, 1)
    s.produce("produce", topic, b"1", producer=producer.at(0), transactional_id=name)
    s.produce("produce outside of the transaction", topic, b"2", producer=producer.at(1))
    s.produce("to partition 1", topic, b"1", partition=1, producer=producer.at(0), transactional_id=name)
    s.produce("for another id", topic, b"2", partition=1, producer=producer.at(1), transactional_id="other")
    _end(s, "commit", producer, commit=True)


def producer_ids(s: Session) -> None:
    """Idempotent producers without transactions."""
    topic = "idempotent"
    s.create_topic(topic, 2)
    response = s.codes("init", "init_producer_id", 4, transactional_id=None)
    producer = Producer("", response.producer_id, response.producer_epoch)
    for sequence in range(7):
        s.produce(f"batch {sequence}", topic, b"x", producer=producer.at(sequence))
    for sequence in range(7):
        s.produce(f"batch {sequence} again", topic, b"x", producer=producer.at(sequence))
    s.produce("a gap", topic, b"x", producer=producer.at(9))
    s.produce("a longer duplicate", topic, b"x", b"y", producer=producer.at(6))
    s.produce("two records", topic, b"x", b"y", producer=producer.at(7))
    s.produce("a part of a duplicate", topic, b"x", producer=producer.at(7))
    later = producer.in_epoch(2)
    s.produce("a later epoch with a gap", topic, b"x", producer=later.at(3))
    s.produce("a later epoch", topic, b"x", producer=later.at(0))
    s.produce("an earlier epoch", topic, b"x", producer=producer.at(9))
    s.produce("first sequence number 5 in a partition", topic, b"x", partition=1, producer=producer.at(5))
    s.produce("a negative sequence number", topic, b"x", producer=later.at(-1))
    s.offset("end", topic, LATEST)


def _read(s: Session, state: str, topic: str, *, is_ongoing: bool = False) -> None:
    """Read a partition at both isolation levels. Without an ongoing transaction, wait for the marker."""
    if not is_ongoing:
        until(
            lambda: (
                s.find_offset(topic, LATEST, isolation=COMMITTED).offset
                == s.find_offset(topic, LATEST).offset
            )
        )
    for level, isolation in (("uncommitted", UNCOMMITTED), ("committed", COMMITTED)):
        s.fetch(f"{state}: fetch {level}", topic, isolation=isolation)
        s.offset(f"{state}: latest {level}", topic, LATEST, isolation=isolation)
    s.offset(f"{state}: earliest committed", topic, EARLIEST, isolation=COMMITTED)


def _init(
    s: Session,
    step: str,
    transactional_id: str,
    *,
    version: int = 4,
    current: tuple[int, int] = (-1, -1),
    timeout: int = 600_000,
) -> Producer:
    """Initialize a producer: code and epoch. `current` is (producer id, epoch) of the client."""
    response = s.ask(
        "init_producer_id",
        version,
        transactional_id=transactional_id,
        transaction_timeout=timeout,
        producer_id=current[0],
        producer_epoch=current[1],
    )
    s.saw(step, (code(response.error_code), response.producer_epoch))
    return Producer(transactional_id, response.producer_id, response.producer_epoch)


def _add_partitions(
    s: Session,
    step: str,
    producer: Producer,
    topic: str,
    *partitions: int,
    version: int = 3,
    verify: bool = False,
) -> None:
    """Add partitions to a transaction, or ask whether they were added."""
    topics = [Struct(name=topic, partitions=partitions or (0,))]
    s.codes(
        step,
        "add_partitions_to_txn",
        version,
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=topics,
        transactions=[
            Struct(
                transactional_id=producer.transactional_id,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                verify_only=verify,
                topics=topics,
            )
        ],
    )


def _add_offsets(s: Session, step: str, producer: Producer, group: str, *, version: int = 3) -> None:
    """Add a group to a transaction."""
    s.codes(
        step,
        "add_offsets_to_txn",
        version,
        transactional_id=producer.transactional_id,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        group_id=group,
    )


def _commit_offset(  # one for each field of the request
    s: Session,
    step: str,
    producer: Producer,
    group: str,
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    version: int = 3,
    generation: int = -1,
    member: str = "",
    metadata: str = "metadata",
) -> None:
    """Commit the offset of one partition in a transaction."""
    committed = Struct(partition_index=partition, committed_offset=offset, committed_metadata=metadata)
    s.codes(
        step,
        "txn_offset_commit",
        version,
        transactional_id=producer.transactional_id,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        group_id=group,
        generation_id=generation,
        member_id=member,
        topics=[Struct(name=topic, partitions=[committed])],
    )


def _end(s: Session, step: str, producer: Producer, *, commit: bool, version: int = 4) -> Producer:
    """End a transaction: code and epoch. Return the producer in the epoch of the response, if it has one."""
    response = s.ask(
        "end_txn",
        version,
        transactional_id=producer.transactional_id,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        committed=commit,
    )
    s.saw(step, (code(response.error_code), response.producer_epoch))
    if code(response.error_code) == "NONE":
        until(lambda: _has_ended(s, producer.transactional_id))
    return producer.in_epoch(response.producer_epoch) if response.producer_epoch >= 0 else producer


def _has_ended(s: Session, transactional_id: str) -> bool:
    """Return True unless Kafka is still writing the markers of a transaction, and moves offsets meanwhile."""
    response = s.ask("describe_transactions", 0, transactional_ids=[transactional_id])
    return not response.transaction_states[0].transaction_state.startswith("Prepare")
