"""The ledger: sent, acknowledged and read records, and the promises that follow.

Every record has an identity, which its header `id` carries, so that tombstones have one too. The promises:

- An acknowledged record is at its offset, unless a newer record of its key supersedes it (compacted topics)
  or retention removed it.
- An idempotent producer's record is there once, and its records are in order in each partition. Without
  idempotence, librdkafka sends records to a new leader although earlier ones are in flight to the old one.
- All readers find the same record at an offset, within one leader epoch.
- A deleted key does not come back.
- Readers of committed records find all records of a committed transaction, and none of an aborted one. If its
  producer does not know the outcome, or commits were lost since, they find all or none.

A failover that loses commits starts another era. Records of an earlier era may be at another offset
afterwards, because their files were adopted again, but they are there, and once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

Partition = tuple[str, int]
_MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPromise:
    """Records that a topic may drop: superseded ones and old tombstones, or those past its retention."""

    is_compacted: bool = False
    retention_ms: int | None = None
    tombstone_ms: int = 0


class SentRecord(NamedTuple):
    """A record that was passed to a producer; `number` counts the records of the producer."""

    producer: str
    number: int
    topic: str
    partition: int
    key: bytes
    is_tombstone: bool
    created_ms: int
    era: int

    @property
    def identity(self) -> bytes:
        """The value of the record's header `id`."""
        return f"{self.producer}.{self.number}".encode()


class ReadRecord(NamedTuple):
    """A record that a reader found; `epoch` is the leader epoch (-1: unknown)."""

    offset: int
    epoch: int
    identity: bytes
    key: bytes
    is_tombstone: bool = False


@dataclass
class TransactionRecords:
    """The records of a transaction; `commits` is None if its producer does not know the outcome."""

    era: int
    records: list[SentRecord] = field(default_factory=list)
    commits: bool | None = False


@dataclass
class Ledger:
    """Records sent and acknowledged so far; safe for threads."""

    topics: Mapping[str, TopicPromise]
    era: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _idempotent: set[str] = field(default_factory=set)
    _sent: dict[bytes, SentRecord] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)
    _acknowledged: dict[Partition, dict[tuple[int, int], SentRecord]] = field(default_factory=dict)
    _seen: dict[Partition, dict[int, tuple[int, bytes]]] = field(default_factory=dict)
    _found: list[str] = field(default_factory=list)
    _transactions: list[TransactionRecords] = field(default_factory=list)

    def add_producer(self, name: str, *, is_idempotent: bool) -> None:
        """Declare a producer before its first record."""
        if is_idempotent:
            self._idempotent.add(name)

    def begin_era(self) -> None:
        """Note that commits were lost from now on back to an unknown moment."""
        with self._lock:
            self.era += 1

    def send(
        self, producer: str, topic: str, partition: int, key: bytes, *, is_tombstone: bool = False
    ) -> SentRecord:
        """Return the next record of a producer."""
        with self._lock:
            number = self._numbers[producer]
            self._numbers[producer] += 1
            now_ms = time.time_ns() // 1_000_000
            sent = SentRecord(producer, number, topic, partition, key, is_tombstone, now_ms, self.era)
            self._sent[sent.identity] = sent
            return sent

    def acknowledge(self, sent: SentRecord, offset: int) -> None:
        """Note that the producer got this offset for the record."""
        with self._lock:
            records = self._acknowledged.setdefault((sent.topic, sent.partition), {})
            other = records.setdefault((self.era, offset), sent)
            if other != sent:
                self._found.append(f"offset {offset} was acknowledged for {other} and for {sent}")

    def begin_transaction(self) -> TransactionRecords:
        """Return a transaction; its producer adds the records, and sets the outcome."""
        with self._lock:
            self._transactions.append(TransactionRecords(self.era))
            return self._transactions[-1]

    @property
    def committed_transactions(self) -> int:
        """The number of transactions whose commit was acknowledged."""
        return sum(each.commits is True for each in self._transactions)

    def refuse(self, sent: SentRecord) -> None:
        """Note that the producer reported a failure; the record may be in the log."""
        with self._lock:
            self.refused[sent.producer] += 1

    def report(self, problem: str) -> None:
        """Note a violation that a client has found."""
        with self._lock:
            self._found.append(problem)

    def observe(self, partition: Partition, record: ReadRecord) -> None:
        """Note that a reader found this record."""
        with self._lock:
            self._observe(partition, record)

    def _observe(self, partition: Partition, record: ReadRecord) -> None:
        seen = self._seen.setdefault(partition, {})
        epoch, identity = seen.setdefault(record.offset, (record.epoch, record.identity))
        if record.epoch > epoch and (epoch >= 0 or self.era > 0 or identity == record.identity):
            seen[record.offset] = (record.epoch, record.identity)
        elif identity == record.identity:
            return
        elif record.epoch == epoch >= 0 or (self.era == 0 and min(record.epoch, epoch) < 0):
            # A reader without epochs cannot know that a failover has lost the first record.
            self._found.append(
                f"{partition}: offset {record.offset} had {identity!r} and {record.identity!r}, epoch {epoch}"
            )

    @property
    def acknowledged_count(self) -> int:
        """The number of acknowledgements."""
        with self._lock:
            return sum(len(each) for each in self._acknowledged.values())

    def acknowledged_in(self, topic: str) -> set[bytes]:
        """Return the identities of the records of a topic that were acknowledged in this era."""
        with self._lock:
            return {
                sent.identity
                for (name, _), records in self._acknowledged.items()
                if name == topic
                for (era, _), sent in records.items()
                if era == self.era
            }

    def offsets_of(
        self, topic: str, identities: Collection[bytes], *, limit: int
    ) -> list[tuple[int, int, int]]:
        """Return partition, era and offset of the first `limit` acknowledgements of these records, sorted."""
        with self._lock:
            found = (
                (partition, era, offset)
                for (name, partition), records in self._acknowledged.items()
                if name == topic
                for (era, offset), sent in records.items()
                if sent.identity in identities
            )
            return nsmallest(limit, found)

    def problems(
        self, logs: Mapping[Partition, Sequence[ReadRecord]], log_starts: Mapping[Partition, int]
    ) -> list[str]:
        """Return a sentence for each violation, given all records of all partitions, in offset order."""
        with self._lock:
            for partition, log in logs.items():
                for record in log:
                    self._observe(partition, record)
            found = list(self._found)
            for partition in sorted(self._acknowledged.keys() | logs.keys()):
                log = logs.get(partition, ())
                found += self._misplaced(partition, log)
                found += self._lost(partition, log, log_starts.get(partition, 0))
                found += self._revived(partition, log)
            found += self._torn(logs)
        return (
            found[:_MAX_PROBLEMS] + [f"… and {len(found) - _MAX_PROBLEMS} more"][: len(found) > _MAX_PROBLEMS]
        )

    def _torn(self, logs: Mapping[Partition, Sequence[ReadRecord]]) -> list[str]:
        """Find transactions that readers of committed records see in part, or against their outcomes."""
        present = {record.identity for log in logs.values() for record in log}
        found = []
        for each in self._transactions:
            shown = [sent.identity in present for sent in each.records]
            if any(shown) and not all(shown):
                found.append(f"a transaction is shown in part: {shown} of {each}")
            elif each.commits is False and any(shown):
                found.append(f"an aborted transaction is shown: {each}")
            elif each.commits and each.era == self.era and not all(shown):
                found.append(f"a committed transaction is missing: {each}")
        return found

    def _misplaced(self, partition: Partition, log: Sequence[ReadRecord]) -> list[str]:
        """Find records that were never sent, are there twice, or are out of order."""
        found = [
            f"{partition}: {record} was never sent"
            for record in log
            if (sent := self._sent.get(record.identity)) is None
            or (sent.topic, sent.partition, sent.key) != (*partition, record.key)
        ]
        offsets = [record.offset for record in log]
        if any(after <= before for before, after in pairwise(offsets)):
            found.append(f"{partition}: offsets do not increase")
        copies = Counter(record.identity for record in log)
        found += [
            f"{partition}: {identity!r} is there {count} times"
            for identity, count in copies.items()
            if count > 1 and self._sent[identity].producer in self._idempotent
        ]
        return found + self._out_of_order(partition, log)

    def _out_of_order(self, partition: Partition, log: Sequence[ReadRecord]) -> list[str]:
        """Compare the first copies of each idempotent producer's records."""
        last: dict[tuple[str, int], int] = {}
        known: set[bytes] = set()
        found: list[str] = []
        for record in log:
            sent = self._sent.get(record.identity)
            if sent is None or sent.producer not in self._idempotent or record.identity in known:
                continue
            known.add(record.identity)
            before = last.get((sent.producer, sent.era), -1)
            if sent.number < before:
                found.append(
                    f"{partition}: {sent.producer}.{before} is before {record.identity!r} at {record.offset}"
                )
            last[sent.producer, sent.era] = max(before, sent.number)
        return found

    def _lost(self, partition: Partition, log: Sequence[ReadRecord], log_start: int) -> list[str]:
        by_offset = {record.offset: record.identity for record in log}
        present = set(by_offset.values())
        newest: dict[bytes, int] = {}
        for record in log:
            newest[record.key] = record.offset
        for (_, offset), sent in self._acknowledged.get(partition, {}).items():
            if sent.is_tombstone:
                newest[sent.key] = max(newest.get(sent.key, -1), offset)
        return [
            f"{partition}: {sent} was acknowledged at {offset} in era {era}, where"
            f" {by_offset.get(offset, b'nothing')!r} is"
            for (era, offset), sent in self._acknowledged.get(partition, {}).items()
            if by_offset.get(offset) != sent.identity
            and not (era < self.era and sent.identity in present)
            and not self._may_be_gone(sent, offset, by_offset, newest, log_start, is_old_era=era < self.era)
        ]

    def _may_be_gone(
        self,
        sent: SentRecord,
        offset: int,
        by_offset: Mapping[int, bytes],
        newest: Mapping[bytes, int],
        log_start: int,
        *,
        is_old_era: bool,
    ) -> bool:
        promise = self.topics[sent.topic]
        age_ms = time.time_ns() // 1_000_000 - sent.created_ms
        if promise.retention_ms is not None:
            return offset < log_start and age_ms >= promise.retention_ms
        if not promise.is_compacted:
            return False
        if is_old_era:
            return sent.key in newest
        if offset in by_offset:
            return False  # another record is at its offset
        is_superseded = newest.get(sent.key, -1) > offset
        return is_superseded or (sent.is_tombstone and age_ms >= promise.tombstone_ms)

    def _revived(self, partition: Partition, log: Sequence[ReadRecord]) -> list[str]:
        """Find records of keys whose acknowledged tombstone is newer and is gone."""
        if not self.topics[partition[0]].is_compacted:
            return []
        present = {record.identity for record in log}
        gone = {
            sent.key: offset
            for (era, offset), sent in self._acknowledged.get(partition, {}).items()
            if sent.is_tombstone and sent.identity not in present and era == self.era
        }
        newest = _newest(log)
        return [
            f"{partition}: key {record.key!r} came back at {record.offset}, deleted at {gone[record.key]}"
            for record in newest
            if record.offset < gone.get(record.key, -1)
        ]


def _newest(log: Iterable[ReadRecord]) -> list[ReadRecord]:
    """Return the newest record of each key."""
    return list({record.key: record for record in log}.values())
