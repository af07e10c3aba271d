"""A client in its own process, which a test may kill: `python -m tests.exactly_once.client ROLE NAME …`.

- writer: transactions of 1 to 8 records over all partitions of the source; some abort.
- transfer: a member of a group that consumes the source, and writes a record to one of the sinks for each of
  its records, with its offsets, in one transaction.
- reader: reads all topics from the start, committed records only.

It ends when its standard input ends. A file `NAME.jsonl` in the directory has its history.
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.crash.clients import QUICK
from tests.exactly_once.checker.history import Record
from tests.exactly_once.recorder import Recorder
from tests.exactly_once.transactions import TransactionalClient

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import Message

SOURCE: Final = "source"
SINKS: Final = ("sink", "side")
TOPICS: Final = (SOURCE, *SINKS)
PARTITIONS: Final = 3
GROUP: Final = "transfer"
_ABORTS: Final = 0.2
_MOST_RECORDS: Final = 8
_PAUSE_SECONDS: Final = 0.02


def consumer_settings(bootstrap: str, group: str) -> dict[str, object]:
    """Return the settings of a reader of committed records."""
    return {
        **QUICK,
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }


def records_of(messages: Iterable[Message]) -> list[Record]:
    """Return the records among messages; librdkafka recovers from errors that are not fatal."""
    records = []
    for message in messages:
        error = message.error()
        if error is None:
            place = f"{message.topic()}/{message.partition()}"
            records.append(Record(place, message.offset() or 0, (message.value() or b"").decode()))
        elif error.fatal():
            raise KafkaException(error)
    return records


def write(client: TransactionalClient, ending: threading.Event, chance: random.Random) -> None:
    """Run transactions until the process must end."""
    while not ending.wait(_PAUSE_SECONDS):
        count = chance.randint(1, _MOST_RECORDS)
        records = [(SOURCE, chance.randrange(PARTITIONS)) for _ in range(count)]
        client.run(records, commits=chance.random() >= _ABORTS)


class Transfer:
    """A member of the group, with its producer."""

    def __init__(
        self, client: TransactionalClient, bootstrap: str, recorder: Recorder, chance: random.Random
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._chance = chance
        settings = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
        self._consumer = Consumer({**consumer_settings(bootstrap, GROUP), **settings})
        self._has_changed = False
        self._consumer.subscribe(
            [SOURCE], on_assign=self._note_change, on_revoke=self._note_change, on_lost=self._note_change
        )

    def _note_change(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._has_changed = True

    def run(self, ending: threading.Event) -> None:
        """Consume and produce until the process must end."""
        while not ending.is_set():
            messages = self._consumer.consume(10, 0.2)
            records = records_of(messages)
            if self._has_changed:  # records of before may be among them
                self._has_changed = False
                self._rewind()
            elif records:
                self._recorder.note("poll", process=self._recorder.name, records=records)
                self._transfer(records)
        self._consumer.close()

    def _transfer(self, records: list[Record]) -> None:
        ends = {record.partition: record.offset + 1 for record in records}
        offsets = [
            TopicPartition(SOURCE, int(partition.rpartition("/")[2]), end) for partition, end in ends.items()
        ]
        has_committed = self._client.run(
            [(self._chance.choice(SINKS), self._chance.randrange(PARTITIONS)) for _ in records],
            commits=self._chance.random() >= _ABORTS,
            reads=records,
            group=GROUP,
            offsets=offsets,
            consumer=self._consumer,
        )
        if not has_committed:
            self._rewind()

    def _rewind(self) -> None:
        """Continue where the group has committed."""
        self._recorder.note("assign", process=self._recorder.name, positions={})
        try:
            for each in self._consumer.committed(self._consumer.assignment(), 10):
                self._consumer.seek(TopicPartition(SOURCE, each.partition, max(each.offset, 0)))
        except KafkaException:
            self._has_changed = True  # try again


def read(bootstrap: str, recorder: Recorder, ending: threading.Event) -> None:
    """Read all topics until the process must end."""
    while not ending.is_set():
        consumer = Consumer(consumer_settings(bootstrap, recorder.name))
        starts = [TopicPartition(topic, each, 0) for topic in TOPICS for each in range(PARTITIONS)]
        recorder.note(
            "assign",
            process=recorder.name,
            positions={f"{each.topic}/{each.partition}": 0 for each in starts},
        )
        consumer.assign(starts)
        try:
            while not ending.is_set():
                if records := records_of(consumer.consume(500, 0.1)):
                    recorder.note("poll", process=recorder.name, records=records)
        except KafkaException as failure:
            if not failure.args[0].fatal():
                raise
        consumer.close()


def main(role: str, name: str, transactional_id: str, bootstrap: str, directory: str, seed: str) -> None:
    """Run a client until the standard input ends."""
    ending = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ending.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    recorder = Recorder(name, Path(directory))
    chance = random.Random(f"{seed}/{name}")
    if role == "reader":
        return read(bootstrap, recorder, ending)
    client = TransactionalClient(transactional_id, bootstrap, recorder)
    if role == "writer":
        return write(client, ending, chance)
    return Transfer(client, bootstrap, recorder, chance).run(ending)


if __name__ == "__main__":
    main(*sys.argv[1:])
