"""Rounds of crashes while producers write, and checks of everything that readers find."""

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
from tests.crash import child_processes
from tests.crash.fail_points import AGENT_POINTS, WORKER_POINTS, Crash
from tests.crash.model import Model, Partition, ReadRecord
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

TIMEOUT_SECONDS: Final = 900.0
PARTITIONS: Final = 2
TOPICS: Final = {
    "stone": {"cleanup.policy": "compact"},
    "silt": {"cleanup.policy": "delete"},
    "rock": {"cleanup.policy": "delete", "storage.mode": "local", "flush.messages": "1"},
}
RECORDS_PER_ROUND: Final = 60
#: The fork server imports all modules once; each child is a fork of it.
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([child_processes.__name__])


class Process(Protocol):
    """A process that may be killed and started again."""

    def start(self) -> None:
        """Start the process; it may die before it is ready."""

    def wait_ready(self) -> bool:
        """Return False if the process dies before it is ready."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""

    def stop(self) -> None:
        """Stop the process normally if it is running."""


class Child:
    """A child process that may be killed and started again."""

    def __init__(
        self,
        run: Callable[[child_processes.ChildConfig, Connection], None],
        config: child_processes.ChildConfig,
    ) -> None:
        self._run = run
        self.config = config
        self._process: ForkServerProcess | None = None
        self._control: Connection | None = None
        self._ready = False

    def start(self, crash: Crash | None = None) -> None:
        """Start the process; it may die before it is ready."""
        self._control, remote = _CONTEXT.Pipe()
        self._ready = False
        self._process = _CONTEXT.Process(
            target=self._run, args=(replace(self.config, crash=crash), remote), daemon=True
        )
        self._process.start()
        remote.close()

    def wait_ready(self) -> bool:
        """Return False if the process dies before it is ready."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not self.is_ready:
            if not self.is_alive:
                return False
            assert time.monotonic() < end, "a child is neither ready nor dead"
            time.sleep(0.005)
        return True

    @property
    def is_ready(self) -> bool:
        """Return True if the process has reported so since its last start."""
        assert self._control is not None
        with contextlib.suppress(EOFError, ConnectionResetError):
            self._ready = self._ready or (self._control.poll() and self._control.recv() == "ready")
        return self._ready

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.join(TIMEOUT_SECONDS)

    def stop(self) -> None:
        """Stop the process normally."""
        assert self._control is not None
        assert self._process is not None
        with contextlib.suppress(BrokenPipeError):
            self._control.send("stop")
        self._process.join(TIMEOUT_SECONDS)
        assert self._process.exitcode == 0, f"a child stopped with {self._process.exitcode}"


@dataclass
class Campaign:
    """Two agents, a worker and an idempotent producer over one catalog and one store."""

    config: child_processes.ChildConfig
    catalog: Catalog
    store: ObjectStore  # without injected faults, for checks
    clock: Clock
    seed: int
    disks: Path
    model: Model = field(default_factory=lambda: Model(frozenset({"stone"})))
    kills: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.agents = [
            Child(
                child_processes.run_agent,
                replace(self.config, kafka_port=port, disks=(self.disks / str(number),)),
            )
            for number, port in enumerate(lasting_ports(2))
        ]
        self.compactors: Sequence[Process] = self.make_compactors()
        for topic, config in TOPICS.items():
            self.catalog.topics.create(topic, PARTITIONS, config)
        self._failures: list[str] = []

    def make_compactors(self) -> Sequence[Process]:
        """Return the processes that plan, compact and collect garbage."""
        return [Child(child_processes.run_worker, self.config)]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{agent.config.kafka_port}" for agent in self.agents)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run all processes inside the block, and none after it."""
        processes = [*self.agents, *self.compactors]
        try:
            for child in processes:
                child.start()
            assert all(child.wait_ready() for child in processes)
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
                    "message.timeout.ms": int(TIMEOUT_SECONDS * 1000),
                    "log_level": 0,
                }
            )
            yield
            for child in processes:
                child.stop()
        finally:
            for child in processes:
                child.kill()

    def round(self) -> None:
        """Kill one process while records are sent, then wait until all records have arrived."""
        victim, name, crash = self.choose_victim()
        if crash is not None:
            victim.kill()
            victim.start(crash)
        for number in range(RECORDS_PER_ROUND):
            self.send_for(0.002)
            if crash is None and number == RECORDS_PER_ROUND // 2:
                victim.kill()
        if crash is not None and not self._crashes(victim):
            name = "point not reached"
        victim.kill()
        self.count_kill(name)
        victim.start()
        assert victim.wait_ready(), "a child died without being killed"
        self.flush()

    def count_kill(self, name: str) -> None:
        """Count a kill under this name."""
        self.kills[name] = self.kills.get(name, 0) + 1

    def flush(self) -> None:
        """Wait until all records have arrived."""
        assert self._producer.flush(TIMEOUT_SECONDS) == 0, "records did not arrive"
        assert self._failures == [], self.kills

    def choose_victim(self) -> tuple[Child, str, Crash | None]:
        """Return the process to kill, a name for the kill, and the crash.

        Without a crash the process is killed at a random moment.
        """
        (worker,) = self.compactors
        assert isinstance(worker, Child)
        if self.random.random() < 0.2:
            return self.random.choice([*self.agents, worker]), "at random", None
        if self.random.random() < 0.5:
            return self.choose_agent_crash()
        point = self.random.choice(WORKER_POINTS)
        return worker, point, Crash(point, self.random.randint(1, 2))

    def choose_agent_crash(self) -> tuple[Child, str, Crash]:
        """Return an agent and a crash for it."""
        point = self.random.choice(AGENT_POINTS)
        return self.random.choice(self.agents), point, Crash(point, self.random.randint(1, 3))

    def _crashes(self, victim: Child) -> bool:
        """Send records until the process reaches its point; return False if it does not in time."""
        victim.wait_ready()
        end = time.monotonic() + 4.0
        while victim.is_alive and time.monotonic() < end:
            self.send_for(0.02)
        return not victim.is_alive

    def send_for(self, seconds: float) -> None:
        """Send one record, and handle acknowledgements for this time."""
        end = time.monotonic() + seconds
        self._send()
        while (left := end - time.monotonic()) > 0:
            self._producer.poll(left)

    def _send(self) -> None:
        topic = self.random.choice(sorted(TOPICS))
        key = b"key %d" % self.random.randrange(12)
        sent = self.model.send(topic, self.random.randrange(PARTITIONS), key)

        def delivered(error: object, message: Message) -> None:
            if error is not None:
                self._failures.append(f"{sent.value[:8]!r} {sent.topic} {sent.partition} {error}")
                return
            offset = message.offset()
            assert offset is not None
            # The offset is -1 for a duplicate whose original offsets the log does not know any more.
            if offset >= 0:
                self.model.acknowledge(sent, offset)

        self._producer.produce(
            topic, value=sent.value, key=sent.key, partition=sent.partition, on_delivery=delivered
        )

    def check(self, *, restart: bool = True) -> None:
        """Read everything and compare it with the model; check every byte and every row.

        No garbage is collected meanwhile, because fsck takes longer than the grace periods here. It is
        collected before: garbage that a slow worker has left may be older than fsck allows.
        """
        for each in self.compactors:
            each.stop()
        collect_garbage(self.catalog, self.store, self.clock, child_processes.GARBAGE)
        logs = {partition: self._read(partition) for partition in self._partitions()}
        problems = self.model.problems(logs)
        assert problems == [], "\n".join(problems)
        report = fsck(self.catalog, self.store, self.clock, deep=True, grace_ms=60_000)
        differences = [each.as_dict() for each in report.differences]
        assert differences == [], differences
        for each in self.compactors if restart else ():
            each.start()
        assert all(each.wait_ready() for each in self.compactors if restart)

    @staticmethod
    def _partitions() -> Sequence[Partition]:
        return [(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]

    def _read(self, partition: Partition) -> list[ReadRecord]:
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
        consumer.assign([TopicPartition(*partition, 0)])
        found: list[ReadRecord] = []
        try:
            while True:
                message = consumer.poll(TIMEOUT_SECONDS)
                assert message is not None, f"{partition} could not be read to its end"
                if (error := message.error()) is not None:
                    assert error.name() == "_PARTITION_EOF", error
                    return found
                offset, key, value = message.offset(), message.key(), message.value()
                assert offset is not None
                assert key is not None
                assert value is not None
                found.append(ReadRecord(offset, _bytes(key), _bytes(value)))
        finally:
            consumer.close()

    def leaks(self) -> list[str]:
        """Return the objects and uploads that are left after all processes and grace periods have ended.

        Unfinished jobs are cancelled, because outputs of failed attempts stay as long as their job.
        """
        for session in self.catalog.sessions.active():
            self.catalog.sessions.fence(session.session_id)
        self.catalog.jobs.release_expired(0, 0)
        for job in self.catalog.jobs.list({JobState.SUBMITTED, JobState.RUNNING}):
            self.catalog.jobs.cancel(job.spec.job_id, "the campaign is over")
        no_grace = GarbageSettings(
            grace_ms=0, session_silence_ms=0, topic_delete_delay_ms=0, unfinished_upload_ms=0
        )
        end = time.monotonic() + TIMEOUT_SECONDS / 3
        while True:
            time.sleep(1.1)  # S3's clock has whole seconds
            collect_garbage(self.catalog, self.store, self.clock, no_grace)
            report = fsck(self.catalog, self.store, self.clock, deep=True, grace_ms=0)
            left = [str(each.as_dict()) for each in report.differences]
            left += [f"{kind}: {count}" for kind, count in report.pending.items() if count]
            if not left or time.monotonic() > end:
                return left


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
