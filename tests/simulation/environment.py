"""The shared state of a schedule, its agents with real sessions and write paths, and its producers.

Each agent is a process that may crash or stall at any of its calls to the store or the catalog.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar, cast

from agent.cluster.catalog_epoch import CatalogEpoch
from agent.cluster.session import Session
from agent.runtime.health import CallHealth, CallTime
from agent.runtime.metrics import AgentMetrics
from agent.runtime.retry import RetryPolicy
from agent.settings import AgentSettings
from agent.write.failed_producers import FailedProducers
from agent.write.validation import validate
from agent.write.write_path import WritePath
from catalog.model import RunRefusal
from core.errors import SiltstoneError
from maintenance.settings import MaintenanceSettings
from object_format.record_batch.records import encode_batch
from planner.settings import PlannerSettings
from tests.simulation.faults import Network
from tests.simulation.store import Bucket, SimulatedStore
from tests.simulation.virtual_time import SimulatedProcess

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from agent.runtime.pools import Pools
    from agent.write.pending_append import AppendResult, PendingAppend
    from agent.write.validation import ValidatedAppend
    from catalog.model import Topic
    from catalog.open import Catalog
    from core.clock import ManualClock
    from core.ids import Ids
    from tests.simulation.faults import FaultInjector
    from tests.simulation.model import Model, SentRecord
    from tests.simulation.transactions import TransactionModel
    from tests.simulation.virtual_time import FiberScheduler

T = TypeVar("T")
METRICS: Final = AgentMetrics()
AGENT: Final = AgentSettings(
    flush_interval_ms=250, write_attempts=4, retry_pause_ms=200, max_retry_pause_ms=2_000
)
LEASE_MS: Final = 30_000
SILENCE_MS: Final = 25_000
CONFIRM_MS: Final = 10_000
GRACE_MS: Final = 60_000
HEARTBEAT_MS: Final = 10_000
ACKNOWLEDGEMENT_TIMEOUT_SECONDS: Final = 25.0
KEYS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings that a test with a planted defect changes.

    `fault_rates` are the probabilities of network faults, stalls and crashes per call. If they are None, the
    seed draws them. With `transactions`, there are transactional clients, too.
    """

    garbage: MaintenanceSettings = field(
        default_factory=lambda: MaintenanceSettings(
            grace_ms=GRACE_MS,
            session_silence_ms=SILENCE_MS,
            fence_confirm_ms=CONFIRM_MS,
            topic_delete_delay_ms=0,
        )
    )
    fault_rates: tuple[float, float, float] | None = None
    transactions: bool = False
    planner: PlannerSettings = field(
        default_factory=lambda: PlannerSettings(
            table_bytes=1 << 16, max_job_files=4, merge_fan_in=2, max_ingestion_age_ms=0
        )
    )


@dataclass
class Environment:
    """The state that all processes of a schedule share, and the violations found so far."""

    catalog: Catalog
    clock: ManualClock
    ids: Ids
    fibers: FiberScheduler
    faults: FaultInjector
    rng: random.Random
    model: Model
    rules: Rules
    bucket: Bucket = field(default_factory=Bucket)
    topics: list[Topic] = field(default_factory=list)
    agents: list[SimulatedAgent] = field(default_factory=list)
    transactions: TransactionModel | None = None
    violations: list[str] = field(default_factory=list)
    unfinished: int = 0
    running_jobs: int = 0

    def process(self, name: str) -> tuple[SimulatedProcess, Network]:
        """Return a new process and its network."""
        process = SimulatedProcess(name)
        return process, Network(self.faults, process)

    def store(self, network: Network) -> SimulatedStore:
        """Return the bucket as this process sees it."""
        return SimulatedStore(self.bucket, network, self.clock.now_ms)


class _Pool:
    """Replacement of a pool of an agent: its calls are fibers of the agent's process."""

    def __init__(self, fibers: FiberScheduler, process: SimulatedProcess) -> None:
        self._fibers, self._process = fibers, process

    async def run(self, call: Callable[[], T]) -> T:
        return await self._fibers.run(call, self._process)


class _Pools:
    def __init__(self, pool: _Pool) -> None:
        self.uploads = self.commits = self.session = pool


class SimulatedAgent:
    """The session and the write path of an agent, over a simulated network."""

    def __init__(self, env: Environment, name: str) -> None:
        self.process, network = env.process(name)
        pool = _Pool(env.fibers, self.process)
        self.catalog = catalog = network.catalog(env.catalog)
        health = CallHealth(env.clock, limit_seconds=60)
        self.session = Session(
            catalog.sessions,
            description=name,
            pool=pool,  # type: ignore[arg-type]  # a session only calls `run`
            ids=env.ids,
            clock=env.clock,
            interval_ms=HEARTBEAT_MS,
            silent_ms=AGENT.broker_silent_ms,
            epoch=CatalogEpoch(),
            health=health,
            heartbeat_time=CallTime(env.clock, limit_seconds=60),
            on_excluded=lambda _: None,
        )
        self.write_path = WritePath(
            settings=AGENT,
            store=env.store(network),
            log=catalog.commits,
            session=self.session,
            pools=cast("Pools", _Pools(pool)),
            retry=RetryPolicy(
                attempts=AGENT.write_attempts,
                first_pause=AGENT.retry_pause_ms / 1000,
                max_pause=AGENT.max_retry_pause_ms / 1000,
                ids=env.ids,
            ),
            clock=env.clock,
            ids=env.ids,
            metrics=METRICS,
            epoch=CatalogEpoch(),
            failed_producers=FailedProducers(env.clock),
            store_health=health,
        )
        self.is_serving = False

    async def start(self) -> None:
        """Start to serve, unless the process crashes first."""
        self.write_path.start()
        while not (self.is_serving or self.process.dead):
            try:
                await self.session.start()
                self.is_serving = True
            except SiltstoneError:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                if not self.process.dead:
                    raise

    async def crash(self) -> None:
        """Abandon the requests in progress."""
        self.is_serving = False
        await self.write_path.abandon()

    async def stop(self) -> None:
        self.is_serving = False
        await self.write_path.stop()
        await self.session.stop()


@dataclass
class Batch:
    """A batch that is not acknowledged yet."""

    sequence: int
    sent: list[SentRecord]


class Producer:
    """A producer of one partition.

    An idempotent producer has up to two batches in flight. A producer without an id sends one batch at a
    time, and only once, because a retry may duplicate it. It stops at the first unknown outcome.
    """

    def __init__(self, env: Environment, topic: Topic, partition: int, producer_id: int | None) -> None:
        self._env, self._topic, self._partition = env, topic, partition
        self._producer_id = producer_id
        self._sequence = 0
        self._waiting: deque[Batch] = deque()

    async def run(self, requests: int) -> None:
        """Send this many batches; retry each until it is acknowledged or its topic is deleted."""
        self._env.unfinished += 1
        rng = self._env.rng
        for number in range(requests):
            self._waiting.append(self._batch(rng.randint(1, 3)))
            if self._producer_id is None:
                await self._send_waiting()
                if self._waiting:
                    break
            # The first batch is sent alone, because a log accepts any first sequence of an unknown producer.
            elif number and number + 1 < requests and len(self._waiting) < rng.randint(1, 2):
                continue
            while self._waiting and self._topic in self._env.topics:
                await self._send_waiting()
            await asyncio.sleep(rng.expovariate(1 / 5))
        self._env.unfinished -= 1

    def _batch(self, count: int) -> Batch:
        model, rng = self._env.model, self._env.rng
        sent = [
            model.send(self._topic.name, self._partition, b"key%d" % rng.randrange(KEYS))
            for _ in range(count)
        ]
        self._sequence += count
        return Batch(self._sequence - count, sent)

    async def _send_waiting(self) -> None:
        """Send the waiting batches in order; keep those that must be sent again."""
        serving = [agent for agent in self._env.agents if agent.is_serving]
        if not serving:
            await asyncio.sleep(1)
            return
        path = self._env.rng.choice(serving).write_path
        try:
            pending = []
            for batch in self._waiting:
                pending += path.enqueue([self._encoded(batch)])
                path.flush()
        except SiltstoneError:
            await asyncio.sleep(0.5)
            return
        results = [await self._await_result(each) for each in pending]
        left = [
            batch
            for batch, result in zip(self._waiting, results, strict=True)
            if not self._is_finished(batch, result)
        ]
        self._waiting = deque(left)
        if left:
            await asyncio.sleep(0.2)

    @staticmethod
    async def _await_result(pending: PendingAppend) -> AppendResult | None:
        """Return the result of a batch; None after a timeout."""
        try:
            (result,) = await asyncio.wait_for(pending.wait(), ACKNOWLEDGEMENT_TIMEOUT_SECONDS)
        except TimeoutError:
            return None
        return result

    def _is_finished(self, batch: Batch, result: AppendResult | None) -> bool:
        if result is None or result.error is not None:
            return False
        if result.appended:
            for index, sent in enumerate(batch.sent):
                self._env.model.acknowledge(sent, result.base_offset + index)
        return result.appended or result.refusal is RunRefusal.UNKNOWN_TOPIC_OR_PARTITION

    def _encoded(self, batch: Batch) -> ValidatedAppend:
        now_ms = self._env.clock.now_ms()
        data = encode_batch(
            [now_ms] * len(batch.sent),
            [sent.key for sent in batch.sent],
            [sent.value for sent in batch.sent],
            producer=(-1, -1, -1) if self._producer_id is None else (self._producer_id, 0, batch.sequence),
        )
        return validate(self._topic, self._partition, bytearray(data), now_ms=now_ms)
