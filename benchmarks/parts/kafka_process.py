"""Processes that the Kafka benchmark measures: an agent, and a minimal server on the same transport."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import httpx
import psutil
import structlog
import uvloop
from prometheus_client.parser import text_string_to_metric_families
from typing_extensions import override

import agent.process
from agent.kafka.connection.frames import RECEIVE_BYTES, FrameReceiver
from agent.listeners import HttpListener, KafkaListener
from agent.settings import AgentSettings
from benchmarks.parts.slow_store import SlowStore
from catalog.open import EmbeddedPostgres, migrate_catalog, open_catalog
from catalog.security.scram import ScramMechanism, new_credential
from core.clock import SystemClock
from core.ids import SystemIds
from object_store.open import StoreConfig, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.connection import Connection
    from typing import Self

    from prometheus_client.metrics_core import Metric

_STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class AgentProcess:
    """An agent in a separate process."""

    kafka: str
    http: str
    process: psutil.Process

    @property
    def address(self) -> tuple[str, int]:
        """Address for Kafka clients."""
        host, _, port = self.kafka.rpartition(":")
        return host, int(port)

    def cpu_seconds(self) -> float:
        """Processor time of all threads, including the kernel."""
        return sum(self.cpu_parts())

    def cpu_parts(self) -> tuple[float, float]:
        """Processor time of all threads: in user space, and in the kernel."""
        times = self.process.cpu_times()
        return times.user, times.system

    def loop_seconds(self) -> float:
        """Processor time of the event loop's thread, including the kernel."""
        (loop,) = (each for each in self.process.threads() if each.id == self.process.pid)
        return float(loop.user_time + loop.system_time)

    def resident_bytes(self) -> int:
        """Resident memory."""
        return int(self.process.memory_info().rss)

    def create_topic(self, name: str, partitions: int, **config: str) -> None:
        """Create a topic; underscores in setting names are replaced by dots."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        body = {"name": name, "partitions": partitions, "config": settings}
        httpx.post(f"http://{self.http}/v1/topics", json=body, trust_env=False).raise_for_status()

    def metrics(self) -> dict[str, float]:
        """Return all samples by name; samples that differ in labels are added up."""
        found: dict[str, float] = {}
        for family in self._families():
            for sample in family.samples:
                if "le" not in sample.labels:
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found

    def requests_to_store(self, kind: str, purpose: str) -> tuple[int, int]:
        """Return the requests of a kind and purpose, and the bytes that they brought."""
        labels = {"kind": kind, "purpose": purpose}
        samples = [
            sample for family in self._families() for sample in family.samples if sample.labels == labels
        ]
        found = {sample.name: int(sample.value) for sample in samples}
        names = ("siltstone_store_requests_total", "siltstone_store_bytes_in_total")
        return found.get(names[0], 0), found.get(names[1], 0)

    def catalog_statements(self, operation: str) -> float:
        """Return the statements that an operation of the catalog has sent."""
        return sum(
            sample.value
            for family in self._families()
            for sample in family.samples
            if sample.name == "siltstone_catalog_statements_total" and sample.labels["operation"] == operation
        )

    def _families(self) -> list[Metric]:
        text = httpx.get(f"http://{self.http}/metrics", trust_env=False).raise_for_status().text
        return list(text_string_to_metric_families(text))

    def buckets(self, name: str) -> dict[float, float]:
        """Return the cumulative counts of a histogram by upper bound in seconds."""
        return {
            float(sample.labels["le"]): sample.value
            for family in self._families()
            if family.name == name
            for sample in family.samples
            if sample.name.endswith("_bucket")
        }


class Cluster:
    """A catalog and a directory of objects, for a sequence of agents."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._store = StoreConfig(url=str(directory / "objects"))
        self._postgres = EmbeddedPostgres(directory / "catalog")

    def __enter__(self) -> Self:
        clock = SystemClock()
        migrate_catalog(self._postgres.__enter__().url, clock, SystemIds(clock))
        return self

    def __exit__(self, *_: object) -> None:
        self._postgres.close()

    def postgres_cpu_seconds(self) -> float:
        """Return the processor time of the catalog's server processes, including the kernel."""
        seconds = 0.0
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if Path(process.cwd()).is_relative_to(self.directory):
                    times = process.cpu_times()
                    seconds += times.user + times.system
        return seconds

    def add_user(self, name: str, password: str) -> None:
        """Add a user with SCRAM-SHA-512."""
        clock = SystemClock()
        ids = SystemIds(clock)
        with open_catalog(self._postgres.url, clock, ids) as catalog:
            catalog.users.alter(upsertions=[(name, new_credential(ScramMechanism.SHA_512, password, ids))])

    @contextmanager
    def agent(
        self,
        *,
        put_delay_ms: int = 0,
        get_delay_ms: int = 0,
        **changes: Any,  # noqa: ANN401  # any setting
    ) -> Iterator[AgentProcess]:
        """Yield an agent with default settings except for the given ones.

        `put_delay_ms` is added to each PUT, and `get_delay_ms` to each GET, as by a remote store.
        """
        listeners: dict[str, Any] = {
            "http_listeners": (HttpListener(port=0),),
            "kafka_listeners": (KafkaListener(port=0),),
        }
        settings = AgentSettings(**{**listeners, **changes})
        delays = {"put_delay_ms": put_delay_ms, "get_delay_ms": get_delay_ms}
        arguments = (settings, self._store, self._postgres.url, delays)
        with _spawned(_serve_agent, arguments) as (process, addresses):
            yield AgentProcess(addresses["kafka"], addresses["http"], process)


def _serve_agent(
    addresses: Connection, settings: AgentSettings, store: StoreConfig, url: str, delays: dict[str, int]
) -> None:
    def open_slow_store(*arguments: Any, **options: Any) -> SlowStore:  # noqa: ANN401  # those of open_store
        return SlowStore(open_store(*arguments, **options), **delays)

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with ExitStack() as replaced:
        if any(delays.values()):
            replaced.enter_context(patch.object(agent.process, "open_store", open_slow_store))
        agent.process.run(settings, store_config=store, catalog_url=url, on_ready=addresses.send)


@contextmanager
def bare_server(response_bytes: int) -> Iterator[AgentProcess]:
    """Yield a server that receives frames like an agent and responds to each with a frame of a fixed size."""
    with _spawned(_serve_bare, (response_bytes,)) as (process, port):
        yield AgentProcess(f"127.0.0.1:{port}", "", process)


@contextmanager
def _spawned(
    target: Callable[..., None], arguments: tuple[object, ...]
) -> Iterator[tuple[psutil.Process, Mapping[str, str]]]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(target, theirs, *arguments))
    process.start()
    theirs.close()  # so that the end of the process ends the wait for its address
    try:
        yield psutil.Process(process.pid), ours.recv()
    finally:
        process.terminate()
        process.join(_STOP_SECONDS)
        process.kill()
        process.join()


def _serve(target: Callable[..., None], connection: Connection, *arguments: object) -> None:
    """Run a server that ends when its parent does, even if the parent was killed."""
    threading.Thread(target=_stop_with_parent, args=(connection,), daemon=True).start()
    target(connection, *arguments)


def _stop_with_parent(connection: Connection) -> None:
    with suppress(EOFError, OSError):
        connection.recv()  # the parent sends nothing
    os.kill(os.getpid(), signal.SIGTERM)


def _serve_bare(ready: Connection, response_bytes: int) -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        shared = memoryview(bytearray(RECEIVE_BYTES))
        server = await loop.create_server(lambda: _Bare(shared, response_bytes), "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(serve())


class _Bare(asyncio.BufferedProtocol):
    def __init__(self, shared: memoryview, response_bytes: int) -> None:
        self._receiver = FrameReceiver(
            shared,
            max_frame_bytes=2**30,
            reserve=lambda _held, _received, length: length,
            has_room=lambda: True,
            deliver=lambda _: self._respond(),
        )
        self._payload = bytes(response_bytes)
        self._transport: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer()

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self._receiver.received(nbytes)

    def _respond(self) -> None:
        if self._transport is not None:
            self._transport.writelines([len(self._payload).to_bytes(4, "big"), self._payload])
