"""The two servers of the comparison: a Kafka broker and an agent, behind one interface.

Both are processes with default settings on loopback, with their data on the same disk, and both have
PLAINTEXT or SASL_SSL for their clients. A load only sees the
`Server`, so it cannot treat them differently. `Testbed` starts them, and stops them after any error.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Protocol

import psutil
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # the library does not list it
from confluent_kafka.cimpl import KafkaException, NewTopic

from benchmarks.beside_kafka.load import LoadError
from benchmarks.beside_kafka.security import PASSWORD, USER, add_user
from benchmarks.parts.kafka_process import AgentProcess, Cluster
from tests.fixtures.kafka_broker import KafkaBroker, kafka_broker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from benchmarks.beside_kafka.security import SecureListener

KAFKA, SILTSTONE = "kafka", "siltstone"
_HEAP = ("-Xmx512m", "-Duser.language=en")
_ADMIN_SECONDS = 60.0
_BROKER_SETTINGS = {"log.segment.delete.delay.ms": 1000}  # otherwise deleted topics fill the disk
_MAX_OBJECT_BYTES = 5 * 10**9


class Server(Protocol):
    """A running server."""

    @property
    def name(self) -> str:
        """`kafka` or `siltstone`."""
        ...

    @property
    def client_settings(self) -> Mapping[str, str]:
        """Settings with which librdkafka connects: the address, and what a secure listener needs."""
        ...

    @property
    def directory(self) -> Path:
        """Directory of all its data."""
        ...

    def cpu_seconds(self) -> float:
        """Processor time of all its processes, including the kernel."""
        ...

    def counters(self) -> dict[str, float]:
        """Figures that explain a result, as far as the server has them."""
        ...


@dataclass(frozen=True, slots=True)
class KafkaServer:
    """A Kafka broker."""

    broker: KafkaBroker
    directory: Path
    secure: SecureListener | None = None
    name: str = KAFKA

    @property
    def client_settings(self) -> Mapping[str, str]:
        """The address, and credentials for a secure listener."""
        if self.secure is None:
            return {"bootstrap.servers": self.broker.address}
        return {"bootstrap.servers": self.broker.secure_address, **self.secure.client_settings}

    def cpu_seconds(self) -> float:
        """Processor time of Java, with its compiler and garbage collector."""
        times = psutil.Process(self.broker.process_id).cpu_times()
        return float(times.user + times.system)

    def counters(self) -> dict[str, float]:
        """Nothing."""
        return {}


@dataclass(frozen=True, slots=True)
class SiltstoneServer:
    """An agent, with the PostgreSQL server of its catalog."""

    agent: AgentProcess
    cluster: Cluster
    secure: SecureListener | None = None
    name: str = SILTSTONE

    @property
    def client_settings(self) -> Mapping[str, str]:
        """The address, and credentials for a secure listener."""
        credentials = {} if self.secure is None else self.secure.client_settings
        return {"bootstrap.servers": self.agent.kafka, **credentials}

    @property
    def directory(self) -> Path:
        """Objects and catalog."""
        return self.cluster.directory

    def cpu_seconds(self) -> float:
        """Processor time of the agent and of PostgreSQL."""
        return self.agent.cpu_seconds() + self.cluster.postgres_cpu_seconds()

    def counters(self) -> dict[str, float]:
        """Metrics of the agent, and the statements that ended its transactions."""
        return {**self.agent.metrics(), "end_statements": self.agent.catalog_statements("transactions.end")}


class Testbed:
    """One broker for the whole run, and agents with changing stores."""

    def __init__(self, directory: Path, secure: SecureListener | None = None) -> None:
        """Take the directory of all data, and the listener of clients unless it is an open one."""
        self._directory = directory
        self._secure = secure
        self._all = ExitStack()
        self._agent = ExitStack()
        self._clusters = 0
        self._put_delay_ms: int | None = None
        self._kafka: Server | None = None
        self._siltstone: Server | None = None

    def __enter__(self) -> Self:
        self._all.push(self._agent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.close()

    def servers(self, put_delay_ms: int = 0) -> tuple[Server, Server]:
        """Return the broker, and an agent whose PUTs take so much longer; start them if necessary.

        An agent whose store has grown large is replaced, since it runs no garbage collection.
        """
        if self._kafka is None:
            self._kafka = self._all.enter_context(_kafka(self._directory / "kafka", self._secure))
        full = self._siltstone is not None and _bytes_below(self._siltstone.directory) > _MAX_OBJECT_BYTES
        if self._siltstone is None or full or put_delay_ms != self._put_delay_ms:
            self._agent.close()
            self._clusters += 1
            path = self._directory / f"siltstone-{self._clusters}"
            self._siltstone = self._agent.enter_context(_siltstone(path, put_delay_ms, self._secure))
            self._put_delay_ms = put_delay_ms
        return self._kafka, self._siltstone


@contextmanager
def _kafka(directory: Path, secure: SecureListener | None) -> Iterator[KafkaServer]:
    logs = directory / "logs"
    logs.mkdir(parents=True)
    listener = None if secure is None else secure.of_broker
    with kafka_broker(logs, settings=_BROKER_SETTINGS, options=_HEAP, secure=listener) as broker:
        if secure is not None:
            add_user(broker.address)
        yield KafkaServer(broker, logs, secure)


@contextmanager
def _siltstone(
    directory: Path, put_delay_ms: int, secure: SecureListener | None
) -> Iterator[SiltstoneServer]:
    directory.mkdir()
    changes: dict[str, Any] = {} if secure is None else {"kafka_listeners": (secure.of_agent,)}
    with ExitStack() as opened:
        opened.callback(_remove, directory)
        cluster = opened.enter_context(Cluster(directory))
        if secure is not None:
            cluster.add_user(USER, PASSWORD)
        agent = opened.enter_context(cluster.agent(put_delay_ms=put_delay_ms, **changes))
        yield SiltstoneServer(agent, cluster, secure)


def _remove(directory: Path) -> None:
    """Remove the objects at once, because the disk is small; the rest goes with the temporary directory."""
    for path in (directory / "objects").rglob("*"):
        if path.is_file():
            path.unlink()


def _files_below(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())


def _bytes_below(directory: Path) -> int:
    total = 0
    for path in _files_below(directory):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def evict_pages(server: Server) -> None:
    """Remove the data of a server from the page cache, as far as the server has not mapped it."""
    for path in _files_below(server.directory):
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # dirty pages stay
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _wait_for_leaders(admin: AdminClient, name: str, partitions: int) -> None:
    wanted = {TopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}  # type: ignore[no-untyped-call]
    ends_at = monotonic() + _ADMIN_SECONDS
    while True:
        try:
            for offset in admin.list_offsets(wanted, request_timeout=_ADMIN_SECONDS).values():
                offset.result(_ADMIN_SECONDS)
        except KafkaException:  # the reasons differ: no topic, no leader, no epoch of the leader yet
            if monotonic() > ends_at:
                raise
            sleep(0.05)
        else:
            return


@contextmanager
def topic(server: Server, name: str, partitions: int) -> Iterator[str]:
    """Create a topic with the server's default settings, and delete it unless the run ends.

    All its partitions have leaders when it is yielded. A broker creates a topic before that, and then lets an
    idempotent producer of Java that begins at once fail with OUT_OF_ORDER_SEQUENCE_NUMBER for ever.
    """
    admin = AdminClient({"log_level": 0, **server.client_settings})
    (created,) = admin.create_topics([NewTopic(name, partitions, 1)]).values()
    created.result(_ADMIN_SECONDS)
    _wait_for_leaders(admin, name, partitions)

    def delete() -> None:
        (deleted,) = admin.delete_topics([name], operation_timeout=_ADMIN_SECONDS).values()
        deleted.result(_ADMIN_SECONDS)

    try:
        yield name
    except LoadError:
        with suppress(KafkaException):  # the broker may still be busy with the load that failed
            delete()
        raise
    delete()
