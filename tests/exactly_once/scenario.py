"""Agents, a catalog with a standby, and transactional clients in separate processes, under faults.

The faults and their lanes are those of the campaign in `tests/crash`. At the end the clients end their work,
a last reader reads everything, and the checker judges the history of all processes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.crash import child_processes
from tests.crash.clients import TIMEOUT_SECONDS
from tests.crash.faults import AgentFaults, CatalogFaults, EventLog, Lane
from tests.crash.ledger import Ledger
from tests.crash.processes import Child
from tests.exactly_once.checker.check import anomalies_of
from tests.exactly_once.checker.history import Outcome, history_of, read_events
from tests.exactly_once.client import GROUP, PARTITIONS, SINKS, SOURCE, TOPICS, consumer_settings, records_of
from tests.exactly_once.client_process import ClientFaults, ClientProcess
from tests.exactly_once.recorder import Recorder
from tests.fixtures.ports import lasting_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from catalog.open import Catalog
    from tests.exactly_once.checker.anomalies import Anomaly
    from tests.exactly_once.checker.history import Event, History
    from tests.fixtures.postgres_pair import PostgresPair

T = TypeVar("T")
_AGENT_FAULTS: Final = {"agent: kill -9", "agent: freeze", "agent: crash at a point", "agent: clock step"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many processes there are, and how long they are disturbed.

    However busy the machine is, each lane has `at_least` faults, and there are so many transactions.
    """

    seconds: float
    agents: int = 2
    writers: int = 2
    transfers: int = 2
    max_freeze_seconds: float = 2.0
    pause: tuple[float, float] = (0.2, 1.0)
    client_pause: tuple[float, float] = (0.2, 1.0)
    at_least: int = 2
    transactions: int = 40
    local_topics: tuple[str, ...] = ()


@dataclass
class Scenario:
    """The processes of one run."""

    size: Size
    config: child_processes.ChildConfig
    pair: PostgresPair
    catalog: Catalog
    directory: Path
    seed: int
    clients: list[ClientProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = EventLog(self.directory / "events.log")
        ports = lasting_ports(self.size.agents)
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.agents = [
            Child(
                child_processes.run_agent,
                replace(
                    self.config,
                    kafka_port=port,
                    log=self.directory / f"agent-{port}.log",
                    disks=(self.directory / f"disk-{port}",) if self.size.local_topics else (),
                ),
            )
            for port in ports
        ]
        for topic in TOPICS:
            mode = "local" if topic in self.size.local_topics else "object"
            self.catalog.topics.create(topic, PARTITIONS, {"retention.ms": "-1", "storage.mode": mode})
        self.history_directory = self.directory / "history"
        self.history_directory.mkdir()
        self._writers = self._make("writer", self.size.writers)
        self._transfers = self._make("transfer", self.size.transfers)
        self._reader = self._make("reader", 1)

    def _make(self, role: str, count: int) -> list[ClientProcess]:
        made = [
            ClientProcess(role, f"{role}-{number}", self.bootstrap, self.history_directory, self.seed)
            for number in range(count)
        ]
        self.clients += made
        return made

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run agents and clients inside the block, and none after it."""
        try:
            for agent in self.agents:
                agent.start()
            for client in self.clients:
                client.start()
            assert all(agent.wait_ready() for agent in self.agents)
            yield
            for agent in self.agents:
                agent.stop()
        finally:
            for client in self.clients:
                client.kill()
            for agent in self.agents:
                agent.kill()

    def disturb(self) -> None:
        """Cause faults in all lanes, and end them."""
        size, alive = self.size, threading.Lock()
        faults = {
            "agents": [
                fault
                for fault in AgentFaults(self.agents, size.max_freeze_seconds, alive).all()
                if fault[0] in _AGENT_FAULTS
            ],
            "catalog": CatalogFaults(
                self.pair, Ledger({}), size.max_freeze_seconds, loses_commits=False, agents_are_alive=alive
            ).all(),
            "clients": ClientFaults(self._writers + self._transfers).all(),
        }
        pauses = {"clients": size.client_pause}
        lanes = [
            Lane(name, self.seed, each, self.log, pause=pauses.get(name, size.pause))
            for name, each in faults.items()
        ]
        for lane in lanes:
            lane.start()
        try:
            end = time.monotonic() + size.seconds
            while (left := end - time.monotonic()) > 0:
                self._reader[0].check()
                time.sleep(min(left, 1.0))
            for lane in lanes:
                lane.wait_until_begun(size.at_least)
        finally:
            for lane in lanes:
                lane.end()
            for lane in lanes:
                lane.stop()

    def wait_for_transactions(self) -> None:
        """Let the clients work without faults until there are as many transactions as the run needs."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (count := sum(each["event"] == "end" for each in self._events())) < self.size.transactions:
            for client in self.clients:
                client.check()
            assert time.monotonic() < deadline, f"there were only {count} transactions"
            time.sleep(0.5)

    def _events(self) -> list[Event]:
        return read_events(sorted(self.history_directory.glob("*.jsonl")))

    def finish(self) -> tuple[History, list[Anomaly]]:
        """End the work of all clients, read everything, and return the history and its anomalies."""
        for client in self._writers:
            client.stop()
        recorder = Recorder("final", self.history_directory)
        ends = self._read(recorder, SOURCE)
        recorder.note("offsets", group=GROUP, positions=self._wait_for_group(ends))
        for client in (*self._transfers, *self._reader):
            client.stop()
        for topic in SINKS:
            self._read(recorder, topic)
        history = history_of(self._events())
        return history, anomalies_of(history)

    def _read(self, recorder: Recorder, topic: str) -> dict[str, int]:
        """Read all committed records of a topic; return the end of the last record of each partition."""
        places = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        settings = {**consumer_settings(self.bootstrap, "final"), "enable.partition.eof": False}
        last = {f"{topic}/{number}": 0 for number in range(PARTITIONS)}
        with contextlib.closing(Consumer({**settings, "isolation.level": "read_uncommitted"})) as consumer:
            ends = {f"{topic}/{each.partition}": _end_of(consumer, each) for each in places}
        recorder.note("assign", process="final", positions=dict.fromkeys(last, 0))
        with contextlib.closing(Consumer(settings)) as consumer:
            consumer.assign(places)
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while True:
                records = records_of(consumer.consume(500, 0.2))
                if records:
                    recorder.note("poll", process="final", records=records)
                for record in records:
                    last[record.partition] = record.offset + 1
                stable = {
                    f"{topic}/{each.partition}": _end_of(consumer, each)
                    for each in (places if not records else ())
                }
                if stable == ends and not records:
                    break
                assert time.monotonic() < deadline, f"{topic} did not become stable: {stable}, {ends}"
        recorder.note("read_to", process="final", ends=ends)
        return last

    def _wait_for_group(self, ends: dict[str, int]) -> dict[str, int]:
        """Wait until the group has consumed these records, and return its committed offsets."""
        places = [TopicPartition(SOURCE, number) for number in range(PARTITIONS)]
        deadline = time.monotonic() + TIMEOUT_SECONDS
        with contextlib.closing(Consumer(consumer_settings(self.bootstrap, GROUP))) as consumer:
            while True:
                found = {
                    f"{SOURCE}/{each.partition}": each.offset
                    for each in _until_it_works(partial(consumer.committed, places, TIMEOUT_SECONDS))
                }
                if all(found[partition] >= end for partition, end in ends.items()):
                    return found
                assert time.monotonic() < deadline, f"the group is at {found}, the records end at {ends}"
                for client in self._transfers:
                    client.check()
                time.sleep(0.2)


def _end_of(consumer: Consumer, place: TopicPartition) -> int:
    """Return the end of a partition's log, as the isolation level of the consumer has it."""
    return int(_until_it_works(partial(consumer.get_watermark_offsets, place, TIMEOUT_SECONDS))[1])


def _until_it_works(request: Callable[[], T]) -> T:
    """Repeat a request, which librdkafka gives up when it replaces the connection to an agent."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return request()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def summary(history: History, anomalies: list[Anomaly], log: EventLog) -> str:
    """Return the figures of a run."""
    outcomes = Counter(each.outcome for each in history.transactions.values())
    records = sum(len(each.sends) for each in history.transactions.values())
    read = sum(len(poll.records) for poll in history.polls())
    kinds = Counter(each.kind for each in anomalies)
    ends = ", ".join(f"{outcomes[each]} {each}" for each in Outcome)
    return (
        f"{len(history.transactions)} transactions ({ends}),"
        f" {records} records sent, {read} read; faults: {dict(sorted(log.counts.items()))};"
        f" anomalies: {dict(kinds) or 'none'}"
    )
