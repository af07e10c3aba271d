"""Agents of two releases serve the same clients during an upgrade."""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stubs do not export it

from tests.agent.kafka.waiting import until
from tests.end_to_end.forked_command import forked_agent, report_of, run_siltstone
from tests.end_to_end.processes import agent, as_url
from tests.fixtures.previous_release import PREVIOUS_RELEASE, report_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from confluent_kafka import KafkaError, Message

pytestmark = pytest.mark.integration
_TOPIC, _PARTITIONS = "ledger", 4
_DEADLINE_SECONDS = 240.0
_PACKAGES = (
    "agent",
    "catalog",
    "core",
    "local_tier",
    "maintenance",
    "object_format",
    "object_store",
    "planner",
    "siltstone",
    "spark_jobs",
    "cost_model",
)
"""Folders of the previous release that its agent needs."""
_STEP = 200
"""Acknowledgements to wait for after each step."""


@dataclass
class Ledger:
    """An idempotent producer in a thread, and the acknowledged values of each partition."""

    bootstrap: str
    acknowledged: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0
    failures: list[KafkaError] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        """Create the producer, which knows one agent."""
        self.producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 300_000,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )

    def run(self) -> None:
        """Send records until `stopped`; then wait for the acknowledgements of all of them."""
        producer, sent = self.producer, 0
        while not self.stopped.wait(0.005):
            producer.produce(_TOPIC, b"%d" % sent, partition=sent % _PARTITIONS, on_delivery=self._delivered)
            producer.poll(0)
            sent += 1
        assert producer.flush(_DEADLINE_SECONDS) == 0

    def await_agents(self, count: int) -> None:
        """Wait until the producer knows that many agents. It cannot find others once it knows none alive."""
        until(lambda: len(self.producer.list_topics(timeout=_DEADLINE_SECONDS).brokers) == count)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition, value = message.partition(), message.value()
        if error is not None or partition is None or value is None:
            self.failures.extend([] if error is None else [error])
            return
        self.acknowledged[partition].append(value)
        self.count += 1

    def advance(self) -> None:
        """Wait until records that are sent from now on were acknowledged."""
        target = self.count + _STEP
        until(lambda: self.count >= target)


@contextmanager
def running(ledger: Ledger) -> Iterator[Ledger]:
    """Run the producer until the block ends; no record may fail."""
    thread = threading.Thread(target=ledger.run)
    thread.start()
    try:
        yield ledger
    finally:
        ledger.stopped.set()
        thread.join()
    assert not ledger.failures


def read_all(bootstrap: str, ledger: Ledger) -> dict[int, list[bytes]]:
    """Return the values of each partition, up to the number of those that were acknowledged."""
    found: dict[int, list[bytes]] = defaultdict(list)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "audit", "enable.auto.commit": False})
    with closing(consumer):
        consumer.assign([TopicPartition(_TOPIC, each, OFFSET_BEGINNING) for each in range(_PARTITIONS)])

        def consume() -> bool:
            for message in consumer.consume(500, timeout=0.2):
                partition, value = message.partition(), message.value()
                assert message.error() is None
                assert partition is not None
                assert value is not None
                found[partition].append(value)
            return sum(map(len, found.values())) >= ledger.count

        until(consume)
    return found


@pytest.mark.skipif(not PREVIOUS_RELEASE.is_available, reason=report_header())
def test_producers_lose_nothing_while_an_agent_is_upgraded(
    new_catalog_url: Callable[..., str], tmp_path: Path
) -> None:
    """`siltstone migrate` runs while the old agent serves, then both serve, and then the new one alone."""
    old_source = PREVIOUS_RELEASE.lasting_copy(*_PACKAGES)
    catalog = as_url(new_catalog_url(empty=True))
    where = ("--catalog", catalog, "--object-store", str(tmp_path / "objects"), "--local-dirs", "none")
    start_old = partial(agent, tmp_path / "old-data", *where, source=old_source)
    start_new = partial(forked_agent, tmp_path / "new", "--data-dir", str(tmp_path / "new-data"), *where)

    with ExitStack() as stack:
        old = stack.enter_context(ExitStack())
        _, ready = old.enter_context(start_old())
        admin = AdminClient({"bootstrap.servers": ready["kafka"]})
        for made in admin.create_topics([NewTopic(_TOPIC, _PARTITIONS)]).values():
            made.result(_DEADLINE_SECONDS)
        producing = stack.enter_context(ExitStack())
        ledger = producing.enter_context(running(Ledger(ready["kafka"])))
        ledger.advance()
        run_siltstone("migrate", "--catalog", catalog, directory=tmp_path)
        ledger.advance()  # the old agent continues on the new schema
        ready = stack.enter_context(start_new())
        ledger.await_agents(2)
        ledger.advance()  # both serve
        old.close()
        ledger.advance()
        producing.close()
        found = read_all(ready["kafka"], ledger)
    assert found == ledger.acknowledged
    assert report_of("fsck", "--deep", *where[:4], directory=tmp_path)["differences"] == []
