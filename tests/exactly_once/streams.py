"""A word count of Kafka Streams whose agents are killed, and the check that its counts are exact."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.agent.kafka.work import Work
from tests.crash import child_processes
from tests.crash.clients import MESSAGE_TIMEOUT_SECONDS, QUICK, TIMEOUT_SECONDS
from tests.crash.faults import AgentFaults, EventLog, Lane
from tests.crash.processes import Child
from tests.exactly_once.client import consumer_settings, records_of
from tests.fixtures import kafka_tools
from tests.fixtures.ports import lasting_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import KafkaError, Message

    from catalog.open import Catalog
    from tests.crash.faults import Fault

LINES: Final = "lines"
COUNTS: Final = "counts"
PARTITIONS: Final = 2
_SOURCE: Final = Path(__file__).parent / "java" / "WordCount.java"
_WORDS: Final = tuple(f"word-{number}" for number in range(20))
_WORDS_A_LINE: Final = 3
_AGENT_FAULTS: Final = {"agent: kill -9", "agent: freeze"}


class Lines:
    """An idempotent producer of random lines at a steady rate; `words` counts the acknowledged ones."""

    def __init__(self, bootstrap: str, per_second: float, seed: int) -> None:
        self.words: Counter[str] = Counter()
        self._failures: list[str] = []
        self._per_second = per_second
        self._chance = random.Random(f"{seed}/lines")
        self._ending = threading.Event()
        self._producer = Producer(
            {
                **QUICK,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": int(MESSAGE_TIMEOUT_SECONDS * 1000),
            }
        )
        self.work = Work(self._send_all, "the producer of lines")

    def _send_all(self) -> None:
        while not self._ending.wait(1 / self._per_second):
            self._send(self._chance.choices(_WORDS, k=_WORDS_A_LINE))
        assert self._producer.flush(TIMEOUT_SECONDS) == 0

    def _send(self, words: list[str]) -> None:
        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                self.words.update(words)
            else:
                self._failures.append(str(error))

        self._producer.produce(LINES, " ".join(words).encode(), on_delivery=delivered)
        self._producer.poll(0)

    def finish(self) -> None:
        """Wait until all lines are acknowledged."""
        self._ending.set()
        self.work.finish()
        assert self._failures == []

    def abandon(self) -> None:
        """Stop soon, because the test has failed."""
        self._ending.set()


class StreamsProcess:
    """An instance of the word count; it may be killed and started again on its own directory."""

    def __init__(self, bootstrap: str, directory: Path, number: int) -> None:
        self._bootstrap = bootstrap
        self._directory = directory / f"streams-{number}"
        self._directory.mkdir()
        self.log = self._directory / "output.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process."""
        temporary = f"-Djava.io.tmpdir={self._directory}"
        options = (*kafka_tools.SHORT_RUN, "-Xmx256m", "-Duser.language=en", temporary)
        arguments = (self._bootstrap, LINES, COUNTS, str(self._directory / "state"))
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                kafka_tools.command(str(_SOURCE), *arguments, options=options),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def check(self) -> None:
        """Fail if the process has ended."""
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text(encoding="utf-8")

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def restart(self, chance: random.Random) -> None:
        """Kill the process, and start it after a moment."""
        self.kill()
        time.sleep(chance.uniform(0, 2))
        self.start()


class Counts:
    """All committed counts of each word so far, in the order of their offsets."""

    def __init__(self, bootstrap: str) -> None:
        self.of: dict[str, list[int]] = defaultdict(list)
        self._consumer = Consumer(consumer_settings(bootstrap, "counts"))
        self._consumer.assign([TopicPartition(COUNTS, number, 0) for number in range(PARTITIONS)])

    def read(self) -> None:
        """Read the committed counts that are there.

        librdkafka reports the end of a partition once, so this ends when nothing arrives for a moment.
        """
        while messages := self._consumer.consume(1000, 0.5):
            for message in messages:
                if records_of([message]):
                    self.of[(message.key() or b"").decode()].append(int(message.value() or b"0"))

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


@dataclass
class StreamsScenario:
    """Agents, instances of the word count, and a producer of lines."""

    config: child_processes.ChildConfig
    catalog: Catalog
    directory: Path
    seed: int
    instances: int
    per_second: float
    max_freeze_seconds: float = 2.0
    _streams: list[StreamsProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = EventLog(self.directory / "events.log")
        ports = lasting_ports(3)
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.agents = [
            Child(
                child_processes.run_agent,
                replace(self.config, kafka_port=port, log=self.directory / f"agent-{port}.log"),
            )
            for port in ports
        ]
        for topic in (LINES, COUNTS):
            self.catalog.topics.create(topic, PARTITIONS, {"retention.ms": "-1"})
        self._streams += [
            StreamsProcess(self.bootstrap, self.directory, number) for number in range(self.instances)
        ]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run everything inside the block, and nothing after it."""
        self.lines: Lines | None = None
        try:
            for agent in self.agents:
                agent.start()
            for instance in self._streams:
                instance.start()
            assert all(agent.wait_ready() for agent in self.agents)
            self.lines = Lines(self.bootstrap, self.per_second, self.seed)
            with contextlib.closing(Counts(self.bootstrap)) as self.counts:
                yield
        finally:
            if self.lines is not None:
                self.lines.abandon()
            for instance in self._streams:
                instance.kill()
            for agent in self.agents:
                agent.kill()

    def wait_for_counts(self, least: int) -> None:
        """Wait until there are so many counts, so that faults meet an application at work."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while sum(map(len, self.counts.of.values())) < least:
            self._check()
            self.counts.read()
            assert time.monotonic() < deadline, self._streams[0].log.read_text(encoding="utf-8")
            time.sleep(0.5)

    def disturb(self, seconds: float, *, at_least: int, pause: tuple[float, float]) -> None:
        """Kill and freeze agents for this time, and at least so often; with two instances kill them, too."""
        alive = threading.Lock()
        agents = AgentFaults(self.agents, self.max_freeze_seconds, alive).all()
        faults: dict[str, list[Fault]] = {"agents": [each for each in agents if each[0] in _AGENT_FAULTS]}
        lanes = [Lane(name, self.seed, each, self.log, pause=pause) for name, each in faults.items()]
        if self.instances > 1:
            kill: Fault = ("streams: kill -9", lambda chance: chance.choice(self._streams).restart(chance))
            rarely = (pause[0] * 10, pause[1] * 10)
            lanes.append(Lane("streams", self.seed, [kill], self.log, pause=rarely))
        for lane in lanes:
            lane.start()
        try:
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                self._check()
                self.counts.read()
                time.sleep(min(left, 1.0))
            lanes[0].wait_until_begun(at_least)
        finally:
            for lane in lanes:
                lane.end()
            for lane in lanes:
                lane.stop()

    def _check(self) -> None:
        assert self.lines is not None
        self.lines.work.check()
        if self.instances == 1:
            self._streams[0].check()

    def problems(self) -> list[str]:
        """Wait until all lines are counted; return a sentence for each word whose counts are not exact."""
        assert self.lines is not None
        self.lines.finish()
        expected, found = self.lines.words, self.counts.of
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            self.counts.read()
            last = {word: counts[-1] for word, counts in found.items()}
            if all(last.get(word, 0) >= count for word, count in expected.items()):
                break
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        return [
            f"{word}: {expected[word]} times in the input, counts {_differences(found[word])}"
            for word in sorted(expected.keys() | found.keys())
            if found[word] != list(range(1, expected[word] + 1))
        ]


def _differences(counts: list[int]) -> str:
    """Return where counts do not increase by one."""
    steps = [
        f"{before} → {after}"
        for before, after in zip([0, *counts], counts, strict=False)
        if after != before + 1
    ]
    return f"{len(counts)} up to {max(counts, default=0)}, jumps {steps[:5]}"
