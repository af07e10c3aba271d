"""What all share in a schedule, and those who write: real sessions and write paths of agents, and producers.

Each agent is a machine, which may die or stand still at any of its calls to the store or the catalog.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar, cast

from agent.cluster.session import Session
from agent.runtime.health import CallHealth
from agent.runtime.metrics import AgentMetrics
from agent.runtime.retry import RetryPolicy
from agent.settings import AgentSettings
from agent.write.validation import validate
from agent.write.write_path import WritePath
from catalog.model import RunRefusal
from core.errors import SiltstoneError
from maintenance.garbage_collection import GarbageSettings
from object_format.record_batch.records import encode_batch
from planner.settings import PlannerSettings
from tests.simulation.network import Network
from tests.simulation.store import Bucket, SimulatedStore
from tests.simulation.virtual_time import Machine

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
    from tests.crash.model import Model, SentRecord
    from tests.simulation.network import Weather
    from tests.simulation.virtual_time import Strands

T = TypeVar("T")
METRICS: Final = AgentMetrics()
AGENT: Final = AgentSettings(
    flush_interval_ms=250, write_attempts=4, retry_pause_ms=200, max_retry_pause_ms=2_000
)
LEASE_MS: Final = 30_000
SILENCE_MS: Final = 25_000
GRACE_MS: Final = 60_000
HEARTBEAT_MS: Final = 10_000
PATIENCE_SECONDS: Final = 25.0
KEYS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What tests change to see that it would be noticed; `weather` is drawn where there is none.

    It says how often the network troubles, processes stand still, and die, per call.
    """

    garbage: GarbageSettings = field(
        default_factory=lambda: GarbageSettings(grace_ms=GRACE_MS, session_silence_ms=SILENCE_MS)
    )
    weather: tuple[float, float, float] | None = None
    planner: PlannerSettings = field(
        default_factory=lambda: PlannerSettings(
            table_bytes=1 << 16, max_job_files=4, merge_fan_in=2, max_ingestion_age_ms=0
        )
    )


@dataclass
class World:
    """What all of them share, and what they have seen."""

    catalog: Catalog
    clock: ManualClock
    ids: Ids
    strands: Strands
    weather: Weather
    draw: random.Random
    model: Model
    rules: Rules
    bucket: Bucket = field(default_factory=Bucket)
    topics: list[Topic] = field(default_factory=list)
    agents: list[SimulatedAgent] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    unfinished: int = 0
    jobs_at_work: int = 0

    def machine(self, name: str) -> tuple[Machine, Network]:
        """A new process and its network."""
        machine = Machine(name)
        return machine, Network(self.weather, machine)

    def store(self, network: Network) -> SimulatedStore:
        """The bucket as that process sees it."""
        return SimulatedStore(self.bucket, network, self.clock.now_ms)


class _Pool:
    """Stands for each of an agent's pools: its calls are strands of the agent's machine."""

    def __init__(self, strands: Strands, machine: Machine) -> None:
        self._strands, self._machine = strands, machine

    async def run(self, call: Callable[[], T]) -> T:
        return await self._strands.run(call, self._machine)


class _Pools:
    def __init__(self, pool: _Pool) -> None:
        self.uploads = self.commits = self.session = pool


class SimulatedAgent:
    """The session and the write path of an agent, over a network."""

    def __init__(self, world: World, name: str) -> None:
        self.machine, network = world.machine(name)
        pool = _Pool(world.strands, self.machine)
        catalog = network.catalog(world.catalog)
        health = CallHealth(world.clock, limit_seconds=60)
        self.session = Session(
            catalog.sessions,
            description=name,
            pool=pool,  # type: ignore[arg-type]  # all that a session does with its pool is run
            ids=world.ids,
            clock=world.clock,
            interval_ms=HEARTBEAT_MS,
            silent_ms=AGENT.broker_silent_ms,
            health=health,
        )
        self.path = WritePath(
            settings=AGENT,
            store=world.store(network),
            log=catalog.commits,
            session=self.session,
            pools=cast("Pools", _Pools(pool)),
            retry=RetryPolicy(
                attempts=AGENT.write_attempts,
                first_pause=AGENT.retry_pause_ms / 1000,
                max_pause=AGENT.max_retry_pause_ms / 1000,
                ids=world.ids,
            ),
            clock=world.clock,
            ids=world.ids,
            metrics=METRICS,
            store_health=health,
        )
        self.serves = False

    async def start(self) -> None:
        """Serve, unless the first call is the last one."""
        self.path.start()
        while not (self.serves or self.machine.dead):
            try:
                await self.session.start()
                self.serves = True
            except SiltstoneError:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                if not self.machine.dead:
                    raise

    async def die(self) -> None:
        """What is under way comes to an end where it stands."""
        self.serves = False
        await self.path.abandon()

    async def stop(self) -> None:
        self.serves = False
        await self.path.stop()
        await self.session.stop()


@dataclass
class Batch:
    """What a producer sends as one batch, until it is acknowledged."""

    sequence: int
    sent: list[SentRecord]


class Producer:
    """A producer of one partition. An idempotent one has up to two batches on their way at a time.

    One without a number sends one at a time, each once: nobody would notice if it were there twice. It gives
    up when it is not told what became of one.
    """

    def __init__(self, world: World, topic: Topic, partition: int, number: int | None) -> None:
        self._world, self._topic, self._partition = world, topic, partition
        self._number = number
        self._sequence = 0
        self._waiting: deque[Batch] = deque()

    async def run(self, requests: int) -> None:
        """Send so many batches, each again until it is acknowledged, or its topic is gone."""
        self._world.unfinished += 1
        draw = self._world.draw
        for number in range(requests):
            self._waiting.append(self._batch(draw.randint(1, 3)))
            if self._number is None:
                await self._try_once()
                if self._waiting:
                    break
            # Its first goes alone: a log that knows nothing of a producer takes any sequence for its first.
            elif number and number + 1 < requests and len(self._waiting) < draw.randint(1, 2):
                continue
            while self._waiting and self._topic in self._world.topics:
                await self._try_once()
            await asyncio.sleep(draw.expovariate(1 / 5))
        self._world.unfinished -= 1

    def _batch(self, count: int) -> Batch:
        model, draw = self._world.model, self._world.draw
        sent = [
            model.send(self._topic.name, self._partition, b"key%d" % draw.randrange(KEYS))
            for _ in range(count)
        ]
        self._sequence += count
        return Batch(self._sequence - count, sent)

    async def _try_once(self) -> None:
        """Send what waits, in order, and keep what must be sent again."""
        serving = [agent for agent in self._world.agents if agent.serves]
        if not serving:
            await asyncio.sleep(1)
            return
        path = self._world.draw.choice(serving).path
        try:
            pending = []
            for batch in self._waiting:
                pending += path.enqueue([self._encoded(batch)])
                path.flush()
        except SiltstoneError:
            await asyncio.sleep(0.5)
            return
        answers = [await self._answer(each) for each in pending]
        left = [
            batch
            for batch, answer in zip(self._waiting, answers, strict=True)
            if not self._is_settled(batch, answer)
        ]
        self._waiting = deque(left)
        if left:
            await asyncio.sleep(0.2)

    @staticmethod
    async def _answer(pending: PendingAppend) -> AppendResult | None:
        """What became of a batch; None when nobody says so."""
        try:
            (result,) = await asyncio.wait_for(pending.wait(), PATIENCE_SECONDS)
        except TimeoutError:
            return None
        return result

    def _is_settled(self, batch: Batch, result: AppendResult | None) -> bool:
        if result is None or result.error is not None:
            return False
        if result.appended:
            for place, sent in enumerate(batch.sent):
                self._world.model.acknowledge(sent, result.base_offset + place)
        return result.appended or result.refusal is RunRefusal.UNKNOWN_TOPIC_OR_PARTITION

    def _encoded(self, batch: Batch) -> ValidatedAppend:
        now_ms = self._world.clock.now_ms()
        data = encode_batch(
            [now_ms] * len(batch.sent),
            [sent.key for sent in batch.sent],
            [sent.value for sent in batch.sent],
            producer=(-1, -1, -1) if self._number is None else (self._number, 0, batch.sequence),
        )
        return validate(self._topic, self._partition, bytearray(data), now_ms=now_ms)
