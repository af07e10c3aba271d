"""Processor time of single Kafka requests in the agent's own code, without sockets, disk and catalog.

Produce requests for `PARTITIONS` partitions go through dispatch and write path like those of a connection,
`REQUESTS` of them per ingestion file. Store and catalog are stubs. Fetches read from the tail.

`request` is the cost of each request: to parse and validate it and add it to the open file, and to respond.
`flush` is the cost of the file, divided by its requests: to build it with its checksums, and to publish the
results and update the tail. All figures are processor time in microseconds per request, of the fastest round,
because other load only adds to the time.

`fetch` is without a session. `session` is within one, like Java's consumer, and every partition has new
records. `waiting` is such a request that arrives before the records: to register it, and to respond after the
write. `lz4` and `zstd` are Produce requests with compressed batches, without the cost of their file.

`authorization` is `handle` of a Produce request that names `PARTITIONS` topics, with one partition each:
without an authorizer, and with one that has the decisions in its cache. The rounds of both alternate.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from time import process_time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import uvloop

from agent.cluster.catalog_epoch import CatalogEpoch
from agent.cluster.topic_directory import TopicDirectory
from agent.kafka.api_definition import RetainedBuffers
from agent.kafka.api_registry import APIS
from agent.kafka.codec import Cursor, Message, Struct
from agent.kafka.dispatcher import RequestDispatcher
from agent.kafka.fetch_sessions import FetchSessions
from agent.local_topics.append_router import AppendRouter
from agent.local_topics.reader import LocalLogReader
from agent.local_topics.tail_cache import TailCache
from agent.process import freeze_garbage
from agent.read.caches.block_cache import BlockCache
from agent.read.caches.cache_memory import CacheMemory
from agent.read.caches.catalog_cache import BoundsCache
from agent.read.commit_notifier import CommitNotifier
from agent.read.hot_tail import HotTail
from agent.read.log_lookup import LogLookup
from agent.read.memory_reads import MemoryReads
from agent.read.read_path import ReadPath
from agent.runtime.byte_budget import ByteBudget
from agent.runtime.health import CallHealth, LoopLag
from agent.runtime.metrics import AgentMetrics
from agent.runtime.pools import Pools
from agent.runtime.retry import RetryPolicy
from agent.security.acl_rules import AclIndex
from agent.security.audit import AuditLog
from agent.security.authorizer import Authorizer
from agent.security.identity import Client
from agent.settings import AgentSettings
from agent.write.commit_listeners import AppendMetrics
from agent.write.failed_producers import FailedProducers
from agent.write.write_path import WritePath
from benchmarks.parts.kafka_wire import (
    BATCH_BYTES,
    FETCH,
    PARTITIONS,
    PRODUCE,
    fetch_request,
    produce_request,
)
from benchmarks.parts.kafka_wire import request_frame as frame_of
from catalog.config.values import TopicConfig
from catalog.model import PartitionId, PartitionState, RunResult, SectionResult, Topic
from catalog.security.acl_bindings import (
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from core.clock import DAY_MS, SystemClock
from core.ids import SystemIds
from core.outage import Outage
from object_format.codecs.codec import Codec
from object_format.record_batch.records import Record, encode_records

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from agent.cluster.commits import CommittedFile
    from agent.cluster.session import Session
    from agent.kafka.services import KafkaServices
    from catalog.model import FileCommit, SectionCommit
    from object_store.interface import Buffer, ObjectStore

_CLIENT = Client("127.0.0.1", "PLAINTEXT")
REQUESTS = 40
_NAME = "cost"
_MAX_WAIT_MS = 10_000
_LOOP_ITERATIONS = 20  # of the event loop, until all fetches wait


class _Stubs:
    """Stubs of store, catalog and session, which record when they are called."""

    url = "file:///stub"

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.session_id = topic.topic_id
        self.ends = [0] * topic.partition_count
        self.called_at: dict[str, float] = {}
        self.committed_event = asyncio.Event()

    def put(self, name: str, body: Sequence[Buffer], *, purpose: object) -> int:
        del name, purpose
        self.called_at["put"] = process_time()
        return sum(len(memoryview(part)) for part in body)

    def commit(self, commit: FileCommit) -> tuple[SectionResult, ...]:
        self.called_at["commit"] = process_time()
        results = tuple(self._append(section) for section in commit.sections)
        self.called_at["committed"] = process_time()
        return results

    def commit_together(self, commits: Sequence[FileCommit]) -> list[tuple[SectionResult, ...]]:
        return [self.commit(commit) for commit in commits]

    def _append(self, section: SectionCommit) -> SectionResult:
        runs = []
        for run in section.runs:
            runs.append(RunResult(base_offset=self.ends[section.partition]))
            self.ends[section.partition] += run.offset_count
        end = self.ends[section.partition]
        return SectionResult(
            topic_id=section.topic_id,
            partition=section.partition,
            log_start_offset=0,
            high_watermark=end,
            leader_epoch=0,
            runs=tuple(runs),
            has_transactions=False,
        )

    def committed(self, file: CommittedFile, results: Sequence[SectionResult]) -> None:
        del file, results
        self.called_at["published"] = process_time()
        self.committed_event.set()

    def get(self, name: str) -> Topic:
        assert name == _NAME
        return self.topic

    def states(self, partitions: Sequence[PartitionId]) -> list[PartitionState]:
        return [
            PartitionState(
                topic_id=each.topic_id,
                partition=each.partition,
                log_start_offset=0,
                last_stable_offset=self.ends[each.partition],
                high_watermark=self.ends[each.partition],
                log_end_offset=self.ends[each.partition],
                first_dirty_offset=0,
                leader_epoch=0,
            )
            for each in partitions
        ]


class _Bench:
    """The parts of an agent that Produce and Fetch requests use."""

    def __init__(self, *, authorizes: bool = False) -> None:
        clock = SystemClock()
        ids = SystemIds(clock)
        settings = AgentSettings(
            flush_interval_ms=60_000,
            flush_bytes=128 * 2**20,
            early_puts_per_second=0,  # a step publishes the file itself
            bounds_cache_ms=DAY_MS,
        )
        topic = Topic(
            topic_id=ids.new_uuid(),
            name=_NAME,
            partition_count=PARTITIONS,
            config=TopicConfig(),
            created_ms=clock.now_ms(),
        )
        self.stubs = stubs = _Stubs(topic)
        self.pools = pools = Pools.open(settings)
        metrics = AgentMetrics()
        health = CallHealth(clock, limit_seconds=1.0)
        retry = RetryPolicy(attempts=1, first_pause=1.0, max_pause=1.0, ids=ids)
        tail = HotTail(settings.tail_bytes)
        blocks = BlockCache(CacheMemory(settings.cache_bytes))
        epoch = CatalogEpoch()
        bounds = BoundsCache(clock, ttl_ms=settings.bounds_cache_ms, limit=settings.max_cached_bounds)
        directory = TopicDirectory(cast("Any", stubs), pool=pools.catalog, clock=clock, cache_ms=DAY_MS)
        notifier = CommitNotifier(cast("Any", None), bounds, outage=Outage("benchmark", clock=clock, ids=ids))
        failed = FailedProducers(clock)
        self.write_path = WritePath(
            settings=settings,
            store=cast("ObjectStore", stubs),
            log=stubs,
            session=cast("Session", stubs),
            pools=pools,
            retry=retry,
            clock=clock,
            ids=ids,
            metrics=metrics,
            epoch=epoch,
            failed_producers=failed,
            store_health=health,
            listeners=(tail, bounds, AppendMetrics(metrics), directory, notifier, stubs),
        )
        local_reader = LocalLogReader(TailCache(directory, max_pending_bytes=1, epoch=epoch))
        read_path = ReadPath(
            settings=settings,
            log=LogLookup(
                settings=settings,
                bounds=stubs,
                extents=cast("Any", None),
                bounds_cache=bounds,
                pool=pools.catalog,
                clock=clock,
                epoch=epoch,
                is_current=lambda _epoch: True,
            ),
            tail=tail,
            blocks=blocks,
            reader=cast("Any", None),
            commit_notifier=notifier,
            pools=pools,
            clock=clock,
            metrics=metrics,
            timestamps=cast("Any", None),
            local_reader=local_reader,
            find_aborted=lambda _ranges, _extents, _epochs: {},
        )
        sessions = FetchSessions(
            clock=clock, ids=ids, max_sessions=REQUESTS + 1, max_partitions=1000, evict_ms=-1
        )
        services = SimpleNamespace(
            settings=settings,
            directory=directory,
            appends=AppendRouter(self.write_path),
            failed_producers=failed,
            read_path=read_path,
            epoch=epoch,
            memory_reads=MemoryReads(
                tail=tail,
                blocks=blocks,
                bounds=bounds,
                budget=read_path.budget,
                commit_notifier=notifier,
                clock=clock,
                metrics=metrics,
                max_fetch_bytes=settings.max_fetch_bytes,
                poll_seconds=settings.poll_interval_ms / 1000,
            ),
            fetch_sessions=sessions,
            quotas=SimpleNamespace(active=None),
            authorizer=_authorizer(metrics) if authorizes else None,
            pools=pools,
            parsing_budget=ByteBudget("the memory for parsed requests", settings.max_parsed_bytes),
            metrics=metrics,
            clock=clock,
            loop_lag=LoopLag(clock),
            brokers=SimpleNamespace(own=SimpleNamespace(rack=None)),
        )
        self.dispatch = RequestDispatcher(APIS, cast("KafkaServices", services))

    async def produce(self, frames: Sequence[memoryview]) -> dict[str, float]:
        """Handle the requests, write the file, and respond; return processor seconds of each step."""
        called_at = self.stubs.called_at
        begin = process_time()
        waiting = [await self.dispatch.handle(frame, _CLIENT) for frame in frames]
        taken = process_time()
        self.write_path.flush()
        await self.stubs.committed_event.wait()
        self.stubs.committed_event.clear()
        responses_start = process_time()
        for each in waiting:
            assert callable(each)
            await each()
        answered = process_time()
        return {
            "handle": taken - begin,
            "build_file": called_at["put"] - taken,
            "publish": called_at["published"] - called_at["committed"],
            "respond": answered - responses_start,
        }

    async def fetch(self, frames: Sequence[memoryview], min_bytes: int) -> float:
        """Read one batch of each partition per request; return processor seconds."""
        begin = process_time()
        for frame in frames:
            await self._read(frame, min_bytes)
        return process_time() - begin

    async def _read(self, frame: memoryview, min_bytes: int) -> None:
        response = await self.dispatch.handle(frame, _CLIENT)
        assert isinstance(response, RetainedBuffers)
        assert sum(len(buffer) for buffer in response.buffers) > min_bytes
        response.release()

    async def session(self, offset: int) -> int:
        """Return the id of a new session that starts at this offset."""
        response = await self.dispatch.handle(_fetch_frame(offset, 1, (0, 0)), _CLIENT)
        assert isinstance(response, RetainedBuffers)
        response.release()
        read = Message.of("fetch", FETCH).read_response(Cursor(memoryview(b"".join(response.buffers)), 9))
        session_id: int = read.session_id
        return session_id

    async def fetch_waiting(self, frames: Sequence[memoryview], produce: memoryview, min_bytes: int) -> float:
        """Fetch the next records and then write them; return the processor seconds of the fetches."""
        begin = process_time()
        waiting = [asyncio.ensure_future(self._read(frame, min_bytes)) for frame in frames]
        for _ in range(_LOOP_ITERATIONS):
            await asyncio.sleep(0)
        noted = process_time() - begin
        await self.produce([produce])
        await asyncio.gather(*waiting)
        return noted + process_time() - self.stubs.called_at["published"]


def steps(rounds: int) -> dict[str, dict[str, float]]:
    """Return microseconds per request by step, of the fastest round."""
    return uvloop.run(_steps(rounds))


def _fetch_frame(offset: int, batch_bytes: int, session: tuple[int, int] = (0, -1)) -> memoryview:
    request = fetch_request(offset, batch_bytes)
    request.session_id, request.session_epoch = session
    request.max_wait = _MAX_WAIT_MS
    return memoryview(frame_of("fetch", FETCH, request)[4:])


def _batch(codec: Codec = Codec.NONE) -> bytes:
    """Return 16 records of 1 KiB: zeros, or data that compresses like text."""
    size = BATCH_BYTES // 16 - 10
    if codec is Codec.NONE:
        return bytes(encode_records([Record(number, 1, None, bytes(size)) for number in range(16)]))
    chance = random.Random(1)
    words = [chance.randbytes(chance.randrange(2, 9)) for _ in range(500)]
    texts = [b" ".join(chance.choices(words, k=size))[:size] for _ in range(16)]
    return bytes(encode_records([Record(n, 1, None, text) for n, text in enumerate(texts)], codec=codec))


async def _steps(rounds: int) -> dict[str, dict[str, float]]:
    taken = await _measured(_uncompressed_round, rounds)
    produced = ("handle", "respond", "build_file", "publish")
    report = {
        "request": {name: taken[name] for name in produced[:2]},
        "flush": {name: taken[name] for name in produced[2:]},
        "produce": {"sum": round(sum(taken[name] for name in produced), 1)},
    }
    report |= {name: {"sum": taken[name]} for name in ("fetch", "session", "waiting")}
    for codec in (Codec.LZ4, Codec.ZSTD):
        figures = await _measured(partial(_compressed_round, codec), rounds)
        report[codec.name.lower()] = {name: figures[name] for name in produced[:2]}
    report["authorization"] = await _authorization(rounds)
    return report


def _authorizer(metrics: AgentMetrics) -> Authorizer:
    """Return an authorizer that lets the client write to the topic, and has a thousand other ACLs."""
    audit = AuditLog(
        SystemClock(),
        lines_per_second=100,
        denied=metrics.authorizations_denied,
        suppressed=metrics.audit_lines_suppressed,
        logs_allowed=False,
    )
    authorizer = Authorizer(super_users="", allow_everyone=False, audit=audit)
    acl = AclBinding(
        ResourceType.TOPIC,
        PatternType.LITERAL,
        _NAME,
        str(_CLIENT.principal),
        "*",
        Operation.WRITE,
        Permission.ALLOW,
    )
    others = [acl._replace(resource_name=f"{_NAME}-{number}") for number in range(1_000)]
    authorizer.replace(AclIndex(None, [acl, *others]))
    return authorizer


async def _authorization(rounds: int) -> dict[str, float]:
    """Return microseconds per request without and with an authorizer, of the fastest round of each."""
    benches = {"off": _Bench(), "on": _Bench(authorizes=True)}
    fastest: dict[str, float] = {}
    request = produce_request(_batch())
    parts = request.topic_data[0].partition_data
    request.topic_data = [Struct(name=_NAME, partition_data=[part]) for part in parts]
    frame = frame_of("produce", PRODUCE, request)[4:]
    for bench in benches.values():
        bench.write_path.start()
    freeze_garbage()
    for number in range(rounds + 1):
        for name, bench in benches.items():
            figures = await bench.produce([memoryview(bytearray(frame)) for _ in range(REQUESTS)])
            if number:  # the first round only warms up
                fastest[name] = min(fastest.get(name, 1.0), figures["handle"])
    for bench in benches.values():
        await bench.write_path.stop()
        bench.pools.close()
    return {name: round(seconds / REQUESTS * 1e6, 1) for name, seconds in fastest.items()}


async def _measured(
    one_round: Callable[[_Bench], Awaitable[dict[str, float]]], rounds: int
) -> dict[str, float]:
    """Return the fastest round of each figure, in microseconds per request."""
    bench = _Bench()
    bench.write_path.start()
    freeze_garbage()
    fastest: dict[str, float] = {}
    for number in range(rounds + 1):
        figures = await one_round(bench)
        if number:  # the first round only warms up
            fastest = {name: min(fastest.get(name, 1.0), taken) for name, taken in figures.items()}
    await bench.write_path.stop()
    bench.pools.close()
    return {name: round(seconds / REQUESTS * 1e6, 1) for name, seconds in fastest.items()}


def _produce_frame(batch: bytes) -> memoryview:
    """Return a writable request, as the write path modifies it."""
    return memoryview(bytearray(frame_of("produce", PRODUCE, produce_request(batch))[4:]))


async def _compressed_round(codec: Codec, bench: _Bench) -> dict[str, float]:
    batch = _batch(codec)
    return await bench.produce([_produce_frame(batch) for _ in range(REQUESTS)])


async def _uncompressed_round(bench: _Bench) -> dict[str, float]:
    batch = _batch()
    min_bytes = PARTITIONS * len(batch)
    figures = await bench.produce([_produce_frame(batch) for _ in range(REQUESTS)])
    newest = bench.stubs.ends[0]
    offsets = [newest - 16 * (each + 1) for each in range(REQUESTS)]
    frames = [_fetch_frame(offset, len(batch)) for offset in offsets]
    figures["fetch"] = await bench.fetch(frames, min_bytes)
    session = await bench.session(newest - 16)
    frames = [_fetch_frame(offset, len(batch), (session, n)) for n, offset in enumerate(offsets, 1)]
    figures["session"] = await bench.fetch(frames, min_bytes)
    sessions = [await bench.session(newest - 16) for _ in range(REQUESTS)]
    frames = [_fetch_frame(newest, len(batch), (session, 1)) for session in sessions]
    figures["waiting"] = await bench.fetch_waiting(frames, _produce_frame(batch), min_bytes)
    return figures
