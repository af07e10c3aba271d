"""A recorded history of transactional clients, as lines of JSON.

Each process writes its own lines, with the time `at` in nanoseconds of the machine's monotonic clock. An
invocation is written before its call, and a completion after it. So a process that is killed leaves an
invocation without completion, and the outcome of its transaction is unknown.

| event | fields | meaning |
|---|---|---|
| begin | process, transaction, group, reads | a transaction; `reads` are the records that it consumes |
| send | transaction, partition, value | a record is passed to the producer; its value is unique |
| sent | transaction, value, offset | the record is acknowledged |
| commit | transaction | the commit begins |
| end | transaction, outcome | the commit or the abort has succeeded, or nothing is known |
| assign | process, positions | a reader continues at these offsets |
| poll | process, records | a reader of committed records got these |
| read_to | process, ends | a reader has read these partitions up to these ends, from their start |
| offsets | group, positions | the committed offsets of a group at the end |

A partition is `topic/number`. Records are lists of partition, offset and value.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

Event = dict[str, Any]


class Outcome(StrEnum):
    """A client's knowledge about the end of its transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Record(NamedTuple):
    """A record that a reader got."""

    partition: str
    offset: int
    value: str


@dataclass(slots=True)
class Send:
    """A record of a transaction; without `offset` it was not acknowledged, or not with an offset."""

    partition: str
    value: str
    invoked: int
    acknowledged: int | None = None
    offset: int | None = None


@dataclass(slots=True)
class Transaction:
    """A transaction: its input and output, and its end."""

    name: str
    process: str
    began: int
    group: str | None = None
    reads: tuple[Record, ...] = ()
    sends: dict[str, Send] = field(default_factory=dict)
    commit_invoked: int | None = None
    ended: int | None = None
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True)
class Poll:
    """The result of a poll, and when it returned."""

    at: int
    records: tuple[Record, ...]


@dataclass(slots=True)
class Session:
    """Polls of a reader between two assignments; `starts` are its first positions, as far as known."""

    process: str
    starts: dict[str, int]
    polls: list[Poll] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """Transactions by name, sessions of readers, ends of partitions, and committed offsets of groups."""

    transactions: dict[str, Transaction] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    offsets: dict[str, dict[str, int]] = field(default_factory=dict)

    def polls(self) -> Iterator[Poll]:
        """Yield all polls."""
        for session in self.sessions:
            yield from session.polls


def read_events(files: Iterable[Path]) -> list[Event]:
    """Return the events of all processes in the order of their times.

    The last line of a process that was killed may be incomplete. Then its event did not happen.
    """
    events: list[Event] = []
    for file in files:
        lines = file.read_bytes().split(b"\n")
        events += [json.loads(line) for line in lines[:-1] if line]
    return sorted(events, key=lambda event: int(event["at"]))


def history_of(events: Sequence[Event]) -> History:
    """Return the history that events describe; they must be in the order of their times."""
    builder = _Builder()
    for event in events:
        getattr(builder, f"add_{event['event']}")(event)
    return builder.history


class _Builder:
    """Adds one event after the other."""

    def __init__(self) -> None:
        self.history = History()
        self._sessions: dict[str, Session] = {}

    def add_begin(self, event: Event) -> None:
        name = event["transaction"]
        self.history.transactions[name] = Transaction(
            name, event["process"], event["at"], event.get("group"), _records(event.get("reads", ()))
        )

    def add_send(self, event: Event) -> None:
        value = event["value"]
        self._transaction(event).sends[value] = Send(event["partition"], value, event["at"])

    def add_sent(self, event: Event) -> None:
        send = self._transaction(event).sends[event["value"]]
        send.acknowledged = event["at"]
        send.offset = event["offset"] if event["offset"] >= 0 else None

    def add_commit(self, event: Event) -> None:
        self._transaction(event).commit_invoked = event["at"]

    def add_end(self, event: Event) -> None:
        transaction = self._transaction(event)
        transaction.ended = event["at"]
        transaction.outcome = Outcome(event["outcome"])

    def add_assign(self, event: Event) -> None:
        session = Session(event["process"], dict(event["positions"]))
        self._sessions[session.process] = session
        self.history.sessions.append(session)

    def add_poll(self, event: Event) -> None:
        if event["process"] not in self._sessions:
            self.add_assign({**event, "positions": {}})
        self._sessions[event["process"]].polls.append(Poll(event["at"], _records(event["records"])))

    def add_read_to(self, event: Event) -> None:
        self.history.ends.update(event["ends"])

    def add_offsets(self, event: Event) -> None:
        self.history.offsets[event["group"]] = dict(event["positions"])

    def _transaction(self, event: Event) -> Transaction:
        return self.history.transactions[event["transaction"]]


def _records(entries: Iterable[Sequence[Any]]) -> tuple[Record, ...]:
    return tuple(Record(*entry) for entry in entries)
