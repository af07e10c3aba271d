"""What follows from a history at once: writers, offsets, logs, and which transactions have committed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.exactly_once.checker.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.exactly_once.checker.history import History, Send, Transaction

Position = tuple[str, int]
"""Partition and offset."""


class Facts:
    """Indices of a history.

    `polled` has the positions at which readers found each value, and `acknowledged` the one that its producer
    got. `logs` has the records of each partition whose offsets are known, in the order of their offsets;
    records of aborted transactions are among them.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.writer: dict[str, Transaction] = {}
        self.acknowledged: dict[str, Position] = {}
        for transaction in history.transactions.values():
            for send in transaction.sends.values():
                self.writer[send.value] = transaction
                if send.offset is not None:
                    self.acknowledged[send.value] = (send.partition, send.offset)
        self.polled: dict[str, set[Position]] = defaultdict(set)
        self._ends = dict(history.ends)
        for poll in history.polls():
            for partition, offset, value in poll.records:
                self.polled[value].add((partition, offset))
                self._ends[partition] = max(self._ends.get(partition, 0), offset + 1)
        self.polled = dict(self.polled)
        self.logs = self._logs()

    def _logs(self) -> dict[str, list[Send]]:
        found: dict[str, list[tuple[int, Send]]] = defaultdict(list)
        for value, transaction in self.writer.items():
            send = transaction.sends[value]
            place = self.place(send)
            if place is not None:
                found[place[0]].append((place[1], send))
        return {
            partition: [send for _, send in sorted(entries, key=lambda entry: entry[0])]
            for partition, entries in found.items()
        }

    def place(self, send: Send) -> Position | None:
        """Return where a record is, if this is known; where it was read counts more."""
        found = [at for at in self.polled.get(send.value, ()) if at[0] == send.partition]
        return min(found) if found else self.acknowledged.get(send.value)

    def positions(self) -> set[Position]:
        """Return the positions of all records that were read."""
        return {position for found in self.polled.values() for position in found}

    def should_be_read(self, send: Send) -> bool:
        """Return True if a reader has read past the record, or to the end of its partition."""
        place = self.place(send)
        if place is None:
            return send.partition in self.history.ends
        return place[1] < self._ends.get(place[0], 0)

    def has_committed(self, transaction: Transaction) -> bool:
        """Return True if the producer knows so, or a reader saw a part of it."""
        return transaction.outcome is Outcome.COMMITTED or (
            transaction.outcome is Outcome.UNKNOWN and not self.polled.keys().isdisjoint(transaction.sends)
        )

    def may_have_committed(self, transaction: Transaction) -> bool:
        """Return False only if it cannot have committed: all that it wrote would have been read."""
        if self.has_committed(transaction):
            return True
        if transaction.outcome is Outcome.ABORTED or transaction.commit_invoked is None:
            return False
        sends = transaction.sends.values()
        return not (sends and all(send.partition in self.history.ends for send in sends))

    def committed(self) -> Iterator[Transaction]:
        """Yield the transactions that have committed."""
        return (each for each in self.history.transactions.values() if self.has_committed(each))
