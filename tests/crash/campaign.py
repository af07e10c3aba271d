"""Rounds in which somebody is killed while producers write; between them readers check everything."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from confluent_kafka import Consumer, Producer, TopicPartition

from catalog.model import JobState
from maintenance.fsck.run import fsck
from maintenance.garbage_collection import GarbageSettings, collect_garbage
from tests.crash import children
from tests.crash.fail_points import AGENT_POINTS, WORKER_POINTS, Strike
from tests.crash.model import Found, Model, Place
from tests.fixtures.ports import lasting_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerProcess
    from pathlib import Path

    from confluent_kafka import Message

    from catalog.open import Catalog
    from core.clock import Clock
    from object_store.interface import ObjectStore

PATIENCE_SECONDS: Final = 900.0
PARTITIONS: Final = 2
TOPICS: Final = {
    "stone": {"cleanup.policy": "compact"},
    "silt": {"cleanup.policy": "delete"},
    "rock": {"cleanup.policy": "delete", "storage.mode": "local", "flush.messages": "1"},
}
RECORDS_A_ROUND: Final = 60
#: Everything is imported once, and each child begins as a fork of that.
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([children.__name__])


class Process(Protocol):
    """What may die at any time, and is started again."""

    def start(self) -> None:
        """Start it; whether it gets ready or dies before is its own affair."""

    def wait_ready(self) -> bool:
        """False when it died first."""
        ...

    def kill(self) -> None:
        """SIGKILL."""

    def stop(self) -> None:
        """Let it come to its end in good order, unless it has ended."""


class Child:
    """A process that may die at any time, and is started again when it has."""

    def __init__(self, run: Callable[[children.Place, Connection], None], place: children.Place) -> None:
        self._run = run
        self.place = place
        self._process: ForkServerProcess | None = None
        self._control: Connection | None = None
        self._ready = False

    def start(self, strike: Strike | None = None) -> None:
        """Start it; whether it gets ready or dies before is its own affair."""
        self._control, theirs = _CONTEXT.Pipe()
        self._ready = False
        self._process = _CONTEXT.Process(
            target=self._run, args=(replace(self.place, strike=strike), theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def wait_ready(self) -> bool:
        """False when it died first."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not self.is_ready:
            if not self.is_alive:
                return False
            assert time.monotonic() < end, "a child neither serves nor dies"
            time.sleep(0.005)
        return True

    @property
    def is_ready(self) -> bool:
        """Whether it has said so since its last start."""
        assert self._control is not None
        with contextlib.suppress(EOFError, ConnectionResetError):
            self._ready = self._ready or (self._control.poll() and self._control.recv() == "ready")
        return self._ready

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.join(PATIENCE_SECONDS)

    def stop(self) -> None:
        """Let it come to its end in good order."""
        assert self._control is not None
        assert self._process is not None
        with contextlib.suppress(BrokenPipeError):
            self._control.send("stop")
        self._process.join(PATIENCE_SECONDS)
        assert self._process.exitcode == 0, f"a child stopped with {self._process.exitcode}"


@dataclass
class Campaign:
    """Two agents, a worker and an idempotent producer over one catalog and one store."""

    place: children.Place
    catalog: Catalog
    store: ObjectStore  # not through bad weather: for checks
    clock: Clock
    seed: int
    disks: Path
    model: Model = field(default_factory=lambda: Model(frozenset({"stone"})))
    deaths: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.agents = [
            Child(children.agent, replace(self.place, kafka_port=port, disks=(self.disks / str(number),)))
            for number, port in enumerate(lasting_ports(2))
        ]
        self.compactors: Sequence[Process] = self.make_compactors()
        for topic, config in TOPICS.items():
            self.catalog.topics.create(topic, PARTITIONS, config)
        self._failures: list[str] = []

    def make_compactors(self) -> Sequence[Process]:
        """Who plans, compacts and collects garbage."""
        return [Child(children.worker, self.place)]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{agent.place.kafka_port}" for agent in self.agents)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """All of it runs inside the block; afterwards nothing does, whatever happened."""
        everyone = [*self.agents, *self.compactors]
        try:
            for child in everyone:
                child.start()
            assert all(child.wait_ready() for child in everyone)
            self._producer = Producer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "enable.idempotence": True,
                    "linger.ms": 2,
                    "batch.num.messages": 7,
                    "reconnect.backoff.ms": 10,
                    "reconnect.backoff.max.ms": 200,
                    "retry.backoff.ms": 20,
                    "retry.backoff.max.ms": 200,
                    "topic.metadata.refresh.interval.ms": 1_000,
                    "message.timeout.ms": int(PATIENCE_SECONDS * 1000),
                    "log_level": 0,
                }
            )
            yield
            for child in everyone:
                child.stop()
        finally:
            for child in everyone:
                child.kill()

    def round(self) -> None:
        """Kill somebody, somewhere, while records are sent; then let all of them arrive."""
        victim, name, strike = self.choose()
        if strike is not None:
            victim.kill()
            victim.start(strike)
        for number in range(RECORDS_A_ROUND):
            self.send_for(0.002)
            if strike is None and number == RECORDS_A_ROUND // 2:
                victim.kill()
        if strike is not None and not self._dies(victim):
            name = "before its point"
        victim.kill()
        self.note_death(name)
        victim.start()
        assert victim.wait_ready(), "a child died that nobody killed"
        self.settle()

    def note_death(self, name: str) -> None:
        """Count it."""
        self.deaths[name] = self.deaths.get(name, 0) + 1

    def settle(self) -> None:
        """Let all records arrive."""
        assert self._producer.flush(PATIENCE_SECONDS) == 0, "records did not arrive"
        assert self._failures == [], self.deaths

    def choose(self) -> tuple[Child, str, Strike | None]:
        """Who dies in the next round, and where; None stands for any moment."""
        (worker,) = self.compactors
        assert isinstance(worker, Child)
        if self.draw.random() < 0.2:
            return self.draw.choice([*self.agents, worker]), "at random", None
        if self.draw.random() < 0.5:
            return self.choose_agent()
        point = self.draw.choice(WORKER_POINTS)
        return worker, point, Strike(point, self.draw.randint(1, 2))

    def choose_agent(self) -> tuple[Child, str, Strike]:
        """An agent, and one of its points."""
        point = self.draw.choice(AGENT_POINTS)
        return self.draw.choice(self.agents), point, Strike(point, self.draw.randint(1, 3))

    def _dies(self, victim: Child) -> bool:
        """Give it something to do until it reaches its point; False when it does not: some seldom are."""
        victim.wait_ready()
        end = time.monotonic() + 4.0
        while victim.is_alive and time.monotonic() < end:
            self.send_for(0.02)
        return not victim.is_alive

    def send_for(self, seconds: float) -> None:
        """Send a record, and take what is acknowledged in so much time."""
        end = time.monotonic() + seconds
        self._send()
        while (left := end - time.monotonic()) > 0:
            self._producer.poll(left)

    def _send(self) -> None:
        topic = self.draw.choice(sorted(TOPICS))
        key = b"key %d" % self.draw.randrange(12)
        sent = self.model.send(topic, self.draw.randrange(PARTITIONS), key)

        def delivered(error: object, message: Message) -> None:
            if error is not None:
                self._failures.append(f"{sent.value[:8]!r} {sent.topic} {sent.partition} {error}")
                return
            offset = message.offset()
            assert offset is not None
            # A duplicate of a batch that the log no longer knows by its offsets is told as -1.
            if offset >= 0:
                self.model.acknowledge(sent, offset)

        self._producer.produce(
            topic, value=sent.value, key=sent.key, partition=sent.partition, on_delivery=delivered
        )

    def check(self, *, go_on: bool = True) -> None:
        """Read everything and hold it against the model; look at every byte and every row.

        Nobody collects garbage meanwhile: the graces here are shorter than fsck takes. It is done before, as
        what a slow worker has not come to yet may be older than fsck allows.
        """
        for each in self.compactors:
            each.stop()
        collect_garbage(self.catalog, self.store, self.clock, children.GARBAGE)
        logs = {place: self._read(place) for place in self._places()}
        problems = self.model.problems(logs)
        assert problems == [], "\n".join(problems)
        report = fsck(self.catalog, self.store, self.clock, deep=True, grace_ms=60_000)
        differences = [each.as_dict() for each in report.differences]
        assert differences == [], differences
        for each in self.compactors if go_on else ():
            each.start()
        assert all(each.wait_ready() for each in self.compactors if go_on)

    @staticmethod
    def _places() -> Sequence[Place]:
        return [(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]

    def _read(self, place: Place) -> list[Found]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(*place, 0)])
        found: list[Found] = []
        try:
            while True:
                message = consumer.poll(PATIENCE_SECONDS)
                assert message is not None, f"{place} could not be read to its end"
                if (error := message.error()) is not None:
                    assert error.name() == "_PARTITION_EOF", error
                    return found
                offset, key, value = message.offset(), message.key(), message.value()
                assert offset is not None
                assert key is not None
                assert value is not None
                found.append(Found(offset, _bytes(key), _bytes(value)))
        finally:
            consumer.close()

    def leaks(self) -> list[str]:
        """Objects and uploads that are left once everybody is gone and every grace is over.

        Jobs that wait are given up: what an attempt that died has written lies there as long as its job.
        """
        for session in self.catalog.sessions.active():
            self.catalog.sessions.fence(session.session_id)
        self.catalog.jobs.release_expired(0)
        for job in self.catalog.jobs.list({JobState.SUBMITTED, JobState.RUNNING}):
            self.catalog.jobs.cancel(job.spec.job_id, "the campaign is over")
        at_once = GarbageSettings(grace_ms=0, session_silence_ms=0, unfinished_upload_ms=0)
        end = time.monotonic() + PATIENCE_SECONDS / 3
        while True:
            time.sleep(1.1)  # S3's clock has whole seconds
            collect_garbage(self.catalog, self.store, self.clock, at_once)
            report = fsck(self.catalog, self.store, self.clock, deep=True, grace_ms=0)
            left = [str(each.as_dict()) for each in report.differences]
            left += [f"{what}: {many}" for what, many in report.pending.items() if many]
            if not left or time.monotonic() > end:
                return left


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
