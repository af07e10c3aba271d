"""The agent's own code for single Kafka requests, taken apart: no socket, no disk, no catalog, one process.

Produce requests of `PARTITIONS` partitions go through the dispatch and the write path as a connection's
would, `REQUESTS` of them to an ingestion file, with a store and a catalog that only answer. Fetches read back
what the tail holds.

`request` is what each request costs by itself: to read and judge it and put it into the open file, and to
answer it. `flush` is what the file costs, which all requests in it share: to lay it out with its checksums,
and to hand out the results and keep the tail. Steps are told apart by processor time; a figure is the fastest
of its rounds, in microseconds for each request, for what else the machine does only ever adds to it.

`fetch` is without a session, `session` within one, as Java's consumer asks: every partition has moved on.
`waiting` is such a request that came too early: to note who waits, and to answer once something is there.
`lz4` and `zstd` are Produce requests with compressed batches; what their file costs is left out.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from time import process_time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import uvloop

from agent.cluster.topic_directory import TopicDirectory
from agent.kafka.api_definition import RetainedBuffers
from agent.kafka.api_registry import APIS
from agent.kafka.codec import Cursor, Message
from agent.kafka.dispatcher import RequestDispatcher
from agent.kafka.fetch_sessions import FetchSessions
from agent.local_topics.append_router import AppendRouter
from agent.local_topics.reader import LocalLogReader
from agent.local_topics.tail_cache import TailCache
from agent.process import freeze_garbage
from agent.read.catalog_cache import BoundsCache
from agent.read.commit_notifier import CommitNotifier
from agent.read.hot_tail import HotTail
from agent.read.log_lookup import LogLookup
from agent.read.memory_reads import MemoryReads
from agent.read.read_path import ReadPath
from agent.runtime.health import CallHealth
from agent.runtime.metrics import AgentMetrics
from agent.runtime.pools import Pools
from agent.runtime.retry import RetryPolicy
from agent.settings import AgentSettings
from agent.write.commit_listeners import AppendMetrics
from agent.write.write_path import WritePath
from benchmarks.kafka_wire import BATCH_BYTES, FETCH, PARTITIONS, PRODUCE, fetch_request, produce_request
from benchmarks.kafka_wire import request_frame as frame_of
from catalog.config.topic_config import TopicConfig
from catalog.model import PartitionId, PartitionState, RunResult, SectionResult, Topic
from core.clock import SystemClock
from core.ids import SystemIds
from object_format.codecs.codec import Codec
from object_format.record_batch.records import Record, encode_records

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from agent.cluster.commits import CommittedFile
    from agent.cluster.session import Session
    from agent.kafka.services import KafkaServices
    from catalog.model import FileCommit, SectionCommit
    from object_store.interface import Buffer, ObjectStore

REQUESTS = 40
_NAME = "cost"
_DAY_MS = 86_400_000
_PATIENCE_MS = 10_000
_MANY_TURNS = 20  # of the loop, until everyone waits


class _Places:
    """Store, catalog and session that only answer, and note when they were asked."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.session_id = topic.topic_id
        self.ends = [0] * topic.partition_count
        self.asked: dict[str, float] = {}
        self.settled = asyncio.Event()

    def put(self, name: str, body: Sequence[Buffer], *, purpose: object) -> int:
        del name, purpose
        self.asked["put"] = process_time()
        return sum(len(memoryview(part)) for part in body)

    def commit(self, commit: FileCommit) -> tuple[SectionResult, ...]:
        self.asked["commit"] = process_time()
        results = tuple(self._append(section) for section in commit.sections)
        self.asked["committed"] = process_time()
        return results

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
        )

    def committed(self, file: CommittedFile, results: Sequence[SectionResult]) -> None:
        del file, results
        self.asked["settled"] = process_time()
        self.settled.set()

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
    """The parts of an agent that a Produce and a Fetch go through, with everything else left out."""

    def __init__(self) -> None:
        clock = SystemClock()
        ids = SystemIds(clock)
        settings = AgentSettings(flush_interval_ms=60_000, flush_bytes=128 * 2**20, bounds_cache_ms=_DAY_MS)
        topic = Topic(
            topic_id=ids.new_uuid(),
            name=_NAME,
            partition_count=PARTITIONS,
            config=TopicConfig(),
            created_ms=clock.now_ms(),
        )
        self.places = places = _Places(topic)
        self.pools = pools = Pools.open(settings)
        metrics = AgentMetrics()
        health = CallHealth(clock, limit_seconds=1.0)
        retry = RetryPolicy(attempts=1, first_pause=1.0, max_pause=1.0, ids=ids)
        tail = HotTail(settings.tail_bytes)
        bounds = BoundsCache(clock, ttl_ms=settings.bounds_cache_ms, limit=settings.max_cached_bounds)
        directory = TopicDirectory(cast("Any", places), pool=pools.catalog, clock=clock, cache_ms=_DAY_MS)
        notifier = CommitNotifier(cast("Any", None), bounds, health=health, retry=retry)
        self.write_path = WritePath(
            settings=settings,
            store=cast("ObjectStore", places),
            log=places,
            session=cast("Session", places),
            pools=pools,
            retry=retry,
            clock=clock,
            ids=ids,
            metrics=metrics,
            store_health=health,
            listeners=(tail, bounds, AppendMetrics(metrics), directory, notifier, places),
        )
        local_reader = LocalLogReader(TailCache(directory, max_pending_bytes=1), pools.disks)
        read_path = ReadPath(
            settings=settings,
            log=LogLookup(
                settings=settings,
                bounds=places,
                extents=cast("Any", None),
                bounds_cache=bounds,
                pool=pools.catalog,
                clock=clock,
            ),
            tail=tail,
            reader=cast("Any", None),
            commit_notifier=notifier,
            pools=pools,
            clock=clock,
            metrics=metrics,
            timestamps=cast("Any", None),
            local_reader=local_reader,
        )
        sessions = FetchSessions(
            clock=clock, ids=ids, max_sessions=REQUESTS + 1, max_partitions=1000, evict_ms=-1
        )
        services = SimpleNamespace(
            settings=settings,
            directory=directory,
            appends=AppendRouter(self.write_path),
            read_path=read_path,
            memory_reads=MemoryReads(
                tail=tail,
                bounds=bounds,
                budget=read_path.budget,
                commit_notifier=notifier,
                clock=clock,
                metrics=metrics,
                max_fetch_bytes=settings.max_fetch_bytes,
                poll_seconds=settings.poll_interval_ms / 1000,
            ),
            fetch_sessions=sessions,
            pools=pools,
            metrics=metrics,
            clock=clock,
            brokers=SimpleNamespace(own=SimpleNamespace(rack=None)),
        )
        self.dispatch = RequestDispatcher(APIS, cast("KafkaServices", services))

    async def produce(self, frames: Sequence[memoryview]) -> dict[str, float]:
        """Take the requests, write the file, answer them; processor seconds of each step."""
        asked = self.places.asked
        begin = process_time()
        waiting = [await self.dispatch.handle(frame, "127.0.0.1") for frame in frames]
        taken = process_time()
        self.write_path.flush()
        await self.places.settled.wait()
        self.places.settled.clear()
        begin_answers = process_time()
        for each in waiting:
            assert callable(each)
            await each()
        answered = process_time()
        return {
            "take": taken - begin,
            "lay_out": asked["put"] - taken,
            "settle": asked["settled"] - asked["committed"],
            "answer": answered - begin_answers,
        }

    async def fetch(self, frames: Sequence[memoryview], least: int) -> float:
        """Read back, a batch of each partition at a time; processor seconds."""
        begin = process_time()
        for frame in frames:
            await self._read(frame, least)
        return process_time() - begin

    async def _read(self, frame: memoryview, least: int) -> None:
        answer = await self.dispatch.handle(frame, "127.0.0.1")
        assert isinstance(answer, RetainedBuffers)
        assert sum(len(buffer) for buffer in answer.buffers) > least
        answer.release()

    async def session(self, offset: int) -> int:
        """A new session from there on; its number."""
        answer = await self.dispatch.handle(_fetch_frame(offset, 1, (0, 0)), "127.0.0.1")
        assert isinstance(answer, RetainedBuffers)
        answer.release()
        read = Message.of("fetch", FETCH).read_response(Cursor(memoryview(b"".join(answer.buffers)), 9))
        session_id: int = read.session_id
        return session_id

    async def fetch_waiting(self, frames: Sequence[memoryview], produce: memoryview, least: int) -> float:
        """Ask for what comes next and then write it; processor seconds of those who ask."""
        begin = process_time()
        waiting = [asyncio.ensure_future(self._read(frame, least)) for frame in frames]
        for _ in range(_MANY_TURNS):
            await asyncio.sleep(0)
        noted = process_time() - begin
        await self.produce([produce])
        await asyncio.gather(*waiting)
        return noted + process_time() - self.places.asked["settled"]


def steps(rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds for each request by step: the fastest round of each."""
    return uvloop.run(_steps(rounds))


def _fetch_frame(offset: int, batch_bytes: int, session: tuple[int, int] = (0, -1)) -> memoryview:
    request = fetch_request(offset, batch_bytes)
    request.session_id, request.session_epoch = session
    request.max_wait = _PATIENCE_MS
    return memoryview(frame_of("fetch", FETCH, request)[4:])


def _batch(codec: Codec = Codec.NONE) -> bytes:
    """16 records of 1 KiB: zeros, or what compresses like text."""
    size = BATCH_BYTES // 16 - 10
    if codec is Codec.NONE:
        return bytes(encode_records([Record(number, 1, None, bytes(size)) for number in range(16)]))
    chance = random.Random(1)
    words = [chance.randbytes(chance.randrange(2, 9)) for _ in range(500)]
    texts = [b" ".join(chance.choices(words, k=size))[:size] for _ in range(16)]
    return bytes(encode_records([Record(n, 1, None, text) for n, text in enumerate(texts)], codec=codec))


async def _steps(rounds: int) -> dict[str, dict[str, float]]:
    taken = await _measured(_plain_round, rounds)
    produced = ("take", "answer", "lay_out", "settle")
    report = {
        "request": {name: taken[name] for name in produced[:2]},
        "flush": {name: taken[name] for name in produced[2:]},
        "produce": {"sum": round(sum(taken[name] for name in produced), 1)},
    }
    report |= {name: {"sum": taken[name]} for name in ("fetch", "session", "waiting")}
    for codec in (Codec.LZ4, Codec.ZSTD):
        figures = await _measured(partial(_compressed_round, codec), rounds)
        report[codec.name.lower()] = {name: figures[name] for name in produced[:2]}
    return report


async def _measured(
    one_round: Callable[[_Bench], Awaitable[dict[str, float]]], rounds: int
) -> dict[str, float]:
    """The fastest round of each figure, in microseconds for each request."""
    bench = _Bench()
    bench.write_path.start()
    freeze_garbage()
    fastest: dict[str, float] = {}
    for number in range(rounds + 1):
        figures = await one_round(bench)
        if number:  # the first one only warms up
            fastest = {name: min(fastest.get(name, 1.0), taken) for name, taken in figures.items()}
    await bench.write_path.stop()
    bench.pools.close()
    return {name: round(seconds / REQUESTS * 1e6, 1) for name, seconds in fastest.items()}


def _produce_frame(batch: bytes) -> memoryview:
    """A request that may be written to, as the write path does."""
    return memoryview(bytearray(frame_of("produce", PRODUCE, produce_request(batch))[4:]))


async def _compressed_round(codec: Codec, bench: _Bench) -> dict[str, float]:
    batch = _batch(codec)
    return await bench.produce([_produce_frame(batch) for _ in range(REQUESTS)])


async def _plain_round(bench: _Bench) -> dict[str, float]:
    batch = _batch()
    least = PARTITIONS * len(batch)
    figures = await bench.produce([_produce_frame(batch) for _ in range(REQUESTS)])
    newest = bench.places.ends[0]
    offsets = [newest - 16 * (each + 1) for each in range(REQUESTS)]
    frames = [_fetch_frame(offset, len(batch)) for offset in offsets]
    figures["fetch"] = await bench.fetch(frames, least)
    session = await bench.session(newest - 16)
    frames = [_fetch_frame(offset, len(batch), (session, n)) for n, offset in enumerate(offsets, 1)]
    figures["session"] = await bench.fetch(frames, least)
    sessions = [await bench.session(newest - 16) for _ in range(REQUESTS)]
    frames = [_fetch_frame(newest, len(batch), (session, 1)) for session in sessions]
    figures["waiting"] = await bench.fetch_waiting(frames, _produce_frame(batch), least)
    return figures
