"""Finds anomalies in a history of transactional clients that read committed records.

It judges with what clients know, in the style of Jepsen's workload for Kafka. A transaction has committed if
its producer knows so, or if a reader saw a part of it. Offsets come from acknowledgements and from polls.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.exactly_once.checker.anomalies import ALLOWED, Anomaly, Kind
from tests.exactly_once.checker.cycles import cycles_of
from tests.exactly_once.checker.facts import Facts
from tests.exactly_once.checker.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.exactly_once.checker.history import History, Record, Send, Session


def anomalies_of(history: History) -> list[Anomaly]:
    """Return all anomalies, those that Kafka allows included."""
    facts = Facts(history)
    return [anomaly for check in _CHECKS for anomaly in check(facts)]


def violations_of(history: History) -> list[Anomaly]:
    """Return the anomalies that Kafka's model forbids."""
    return [anomaly for anomaly in anomalies_of(history) if anomaly.kind not in ALLOWED]


def _bad_reads(facts: Facts) -> Iterator[Anomaly]:
    for poll in facts.history.polls():
        for record in poll.records:
            writer = facts.writer.get(record.value)
            if writer is None or writer.sends[record.value].partition != record.partition:
                yield Anomaly(Kind.NEVER_SENT, f"{record}")
            elif writer.outcome is Outcome.ABORTED:
                yield Anomaly(Kind.ABORTED_READ, f"{record} of {writer.name}")
            elif writer.commit_invoked is None or poll.at < writer.commit_invoked:
                yield Anomaly(Kind.DIRTY_READ, f"{record} of {writer.name}, which had not begun to commit")


def _lost_writes(facts: Facts) -> Iterator[Anomaly]:
    for transaction in facts.committed():
        for send in transaction.sends.values():
            if send.value not in facts.polled and facts.should_be_read(send):
                yield Anomaly(Kind.LOST_WRITE, f"{send} of {transaction.name} ({transaction.outcome})")


def _misplaced(facts: Facts) -> Iterator[Anomaly]:
    by_offset: dict[tuple[str, int], set[str]] = defaultdict(set)
    for value, positions in facts.polled.items():
        if len(positions) > 1:
            yield Anomaly(Kind.DUPLICATE, f"{value} was read at {sorted(positions)}")
        acknowledged = facts.acknowledged.get(value)
        if acknowledged is not None and acknowledged not in positions:
            yield Anomaly(
                Kind.DIVERGENT_OFFSET, f"{value} was acknowledged at {acknowledged}, read at {positions}"
            )
    for found in (facts.polled.items(), ((value, {at}) for value, at in facts.acknowledged.items())):
        for value, positions in found:
            for position in positions:
                by_offset[position].add(value)
    for position, values in by_offset.items():
        if len(values) > 1:
            yield Anomaly(Kind.DIVERGENT_OFFSET, f"{sorted(values)} are at {position}")


def _consumed(facts: Facts) -> Iterator[Anomaly]:
    """Compare what transactions consumed with the records, and with the offsets of their groups."""
    consumers: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    possible: set[tuple[str, str, int]] = set()
    for transaction in facts.history.transactions.values():
        for record in transaction.reads if transaction.group is not None else ():
            place = (transaction.group or "", record.partition, record.offset)
            if facts.has_committed(transaction):
                consumers[place].append(transaction.name)
            elif facts.may_have_committed(transaction):
                possible.add(place)
    for place, names in consumers.items():
        if len(names) > 1:
            yield Anomaly(Kind.CONSUMED_TWICE, f"{place} by {names}")
    for group, positions in facts.history.offsets.items():
        for partition, offset in sorted(facts.positions()):
            place = (group, partition, offset)
            if offset < positions.get(partition, 0) and place not in consumers and place not in possible:
                yield Anomaly(Kind.LOST_INPUT, f"{place}, committed offset {positions[partition]}")


def _reordered(facts: Facts) -> Iterator[Anomaly]:
    """Compare the order of each partition with the order of each process, and with real time."""
    for log in facts.logs.values():
        newest: dict[str, Send] = {}
        for send in log:
            process = facts.writer[send.value].process
            before = newest.get(process)
            if before is not None and before.invoked > send.invoked:
                yield Anomaly(Kind.REORDERED, f"{before} is before {send} of the same process")
            else:
                newest[process] = send
        earliest: Send | None = None
        for send in reversed(log):
            if earliest is not None and (earliest.acknowledged or 0) < send.invoked:
                yield Anomaly(Kind.REORDERED, f"{send} is before {earliest}, which was acknowledged earlier")
            if send.acknowledged is not None and (
                earliest is None or send.acknowledged < (earliest.acknowledged or 0)
            ):
                earliest = send


def _nonmonotonic(facts: Facts) -> Iterator[Anomaly]:
    for session in facts.history.sessions:
        positions = dict(session.starts)
        for poll in session.polls:
            by_partition: dict[str, list[Record]] = defaultdict(list)
            for record in poll.records:
                by_partition[record.partition].append(record)
            for partition, records in by_partition.items():
                if any(after.offset <= before.offset for before, after in pairwise(records)):
                    yield Anomaly(Kind.NONMONOTONIC_POLL, f"{session.process}: {records}")
                if records[0].offset < positions.get(partition, 0):
                    yield Anomaly(
                        Kind.NONMONOTONIC_READER,
                        f"{session.process} was at {positions[partition]} and got {records[0]}",
                    )
                positions[partition] = max(records[-1].offset + 1, positions.get(partition, 0))


def _incomplete_reads(facts: Facts) -> Iterator[Anomaly]:
    for session in facts.history.sessions:
        seen = {record.value for poll in session.polls for record in poll.records}
        ranges = _ranges(session)
        for transaction in facts.committed():
            missing = [
                send
                for send in transaction.sends.values()
                if send.value not in seen
                and (place := facts.place(send)) is not None
                and place[0] in ranges
                and ranges[place[0]][0] <= place[1] < ranges[place[0]][1]
            ]
            if missing:
                kind = Kind.PARTIAL_READ if seen & transaction.sends.keys() else Kind.SKIPPED
                yield Anomaly(kind, f"{session.process}: {missing} of {transaction.name}")


def _ranges(session: Session) -> dict[str, tuple[int, int]]:
    """Return the first position and the end of what a session has read of each partition."""
    starts, ends = dict(session.starts), dict(session.starts)
    for poll in session.polls:
        for record in poll.records:
            starts.setdefault(record.partition, record.offset)
            ends[record.partition] = max(ends.get(record.partition, 0), record.offset + 1)
    return {partition: (start, ends[partition]) for partition, start in starts.items()}


_CHECKS: tuple[Callable[[Facts], Iterator[Anomaly]], ...] = (
    _bad_reads,
    _lost_writes,
    _misplaced,
    _consumed,
    _reordered,
    _nonmonotonic,
    _incomplete_reads,
    cycles_of,
)
