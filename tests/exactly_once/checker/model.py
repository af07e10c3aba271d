"""A small model of Kafka whose clients act one at a time, and which writes down a correct history.

Records and control batches have offsets. A reader of committed records ends at the last stable offset. The
caller chooses each step, so that hypothesis can.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.exactly_once.checker.history import Event

SOURCE = ("in/0", "in/1")
SINK = ("out/0", "out/1")
PARTITIONS = SOURCE + SINK
WRITERS = ("writer-0", "writer-1", "writer-2")
READERS = ("reader-0", "reader-1")
GROUP = "group"


@dataclass
class _Open:
    """A transaction that has not ended."""

    name: str
    process: str
    sent: list[str] = field(default_factory=list)
    consumes: dict[str, int] = field(default_factory=dict)


class Model:
    """The logs, the clients, and the events so far."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._time = count(1)
        self._names = count(1)
        # Each entry is (transaction, value); the value of a control batch is None.
        self._logs: dict[str, list[tuple[str, str | None]]] = {each: [] for each in PARTITIONS}
        self._open: dict[str, _Open] = {}
        self._aborted: set[str] = set()
        self._positions = {reader: dict.fromkeys(PARTITIONS, 0) for reader in READERS}
        self._committed = dict.fromkeys(SOURCE, 0)
        for reader in READERS:
            self._note("assign", process=reader, positions=dict.fromkeys(PARTITIONS, 0))

    def _note(self, kind: str, **details: object) -> None:
        self.events.append({"event": kind, "at": next(self._time), **details})

    def begin(self, process: str) -> None:
        """Begin a transaction of a writer that has none."""
        if process in self._open:
            return
        name = f"t{next(self._names)}"
        self._open[process] = _Open(name, process)
        self._note("begin", process=process, transaction=name)

    def send(self, process: str, partition: str, *, acknowledged: bool = True) -> None:
        """Append a record."""
        if process not in self._open:
            self.begin(process)
        transaction = self._open[process]
        self._append(transaction, partition, f"{transaction.name}.{len(transaction.sent)}", acknowledged)

    def _append(self, transaction: _Open, partition: str, value: str, acknowledged: bool) -> None:  # private
        self._note("send", transaction=transaction.name, partition=partition, value=value)
        transaction.sent.append(partition)
        self._logs[partition].append((transaction.name, value))
        if acknowledged:
            offset = len(self._logs[partition]) - 1
            self._note("sent", transaction=transaction.name, value=value, offset=offset)

    def end(self, process: str, *, commits: bool, known: bool = True, invoked: bool = True) -> None:
        """Commit or abort; the writer learns it if `known`, and dies before it unless `invoked`."""
        transaction = self._open.pop(process, None)
        if transaction is None:
            return
        commits = commits and invoked
        if (commits or not known) and invoked:
            self._note("commit", transaction=transaction.name)
        if not commits:
            self._aborted.add(transaction.name)
        else:
            self._committed.update(transaction.consumes)
        for partition in sorted(set(transaction.sent)):
            self._logs[partition].append((transaction.name, None))
        if known and invoked:
            outcome = "committed" if commits else "aborted"
            self._note("end", transaction=transaction.name, outcome=outcome)

    def poll(self, reader: str, most: int) -> None:
        """Read at most so many records of each partition."""
        records: list[list[object]] = []
        for partition in PARTITIONS:
            records += self._read(partition, self._positions[reader], most)
        if records:
            self._note("poll", process=reader, records=records)

    def _read(self, partition: str, positions: dict[str, int], most: int) -> list[list[object]]:
        records: list[list[object]] = []
        log = self._logs[partition]
        ongoing = {each.name for each in self._open.values()}
        stable = next((at for at, (name, _) in enumerate(log) if name in ongoing), len(log))
        while positions[partition] < stable and len(records) < most:
            name, value = log[positions[partition]]
            if value is not None and name not in self._aborted:
                records.append([partition, positions[partition], value])
            positions[partition] += 1
        return records

    def transfer(self, most: int, *, commits: bool, known: bool = True) -> None:
        """Consume records of the source, and write one for each to the sink, in a transaction."""
        positions = dict(self._committed)
        records = [record for each in SOURCE for record in self._read(each, positions, most)]
        if not records:
            return
        name = f"t{next(self._names)}"
        transaction = _Open(name, "transfer", consumes=positions)
        self._open["transfer"] = transaction
        self._note("begin", process="transfer", transaction=name, group=GROUP, reads=records)
        for number, _ in enumerate(records):
            self._append(transaction, SINK[number % len(SINK)], f"{name}.{number}", acknowledged=True)
        self.end("transfer", commits=commits, known=known)

    def finish(self) -> None:
        """End all transactions, and read everything with each reader."""
        for process in list(self._open):
            self.end(process, commits=True)
        while self._committed != (before := {each: len(self._logs[each]) for each in SOURCE}):
            self.transfer(1000, commits=True)
            self._committed = before
        for reader in READERS:
            self.poll(reader, 10_000)
        ends = {partition: len(log) for partition, log in self._logs.items()}
        self._note("read_to", process=READERS[0], ends=ends)
        self._note("offsets", group=GROUP, positions=dict(self._committed))


Choice = tuple[int, int, int]


def history_from(choices: Sequence[Choice]) -> list[Event]:
    """Return the events of the steps that numbers choose."""
    model = Model()
    for step, one, other in choices:
        process, partition = WRITERS[one % len(WRITERS)], PARTITIONS[other % len(PARTITIONS)]
        if step < 5:
            model.send(process, partition, acknowledged=step > 0)
        elif step < 8:
            model.end(process, commits=other % 3 > 0, known=other % 5 > 0, invoked=other % 7 > 0)
        elif step == 8:
            model.poll(READERS[one % len(READERS)], 1 + other)
        else:
            model.transfer(1 + one, commits=other % 3 > 0, known=other % 4 > 0)
    model.finish()
    return model.events
