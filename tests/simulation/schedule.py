"""One schedule from one seed: a system is built, lives through trouble, comes to rest, and is looked at.

The catalog is the real one, in a PostgreSQL that leaves durability out: each of its operations is a
transaction, and between any two of them anybody else may have a turn. What PostgreSQL does inside of
transactions that run side by side is not simulated; tests of `tests/catalog` with real threads have that. A
model of the catalog in memory would allow some ten times as many schedules a minute, and would be one more
thing that may be wrong: the decisions in question (claims, sequences, swaps, fences, garbage) are SQL.

Everything else is virtual: time, the store, the network, who is alive. A schedule lasts minutes of virtual
time and has some 170 calls to catalog and store. It is short on purpose: what is rare takes two or three
troubles at the right moments, not many of them. A third of the schedules go on until all that was begun is
finished and all garbage is gone, a day later; the others are looked at as they stand when the weather clears
up. One seed gives one schedule. `defects.py` has what they are known to find.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

import psycopg
from psycopg.conninfo import make_conninfo

from catalog.model import JobState, PartitionId
from catalog.open import open_catalog
from core.ids import SeededIds
from maintenance.fsck.report import DifferenceKind
from maintenance.fsck.run import fsck
from object_store.binding import verify_binding
from tests.crash.model import Model, ReadRecord
from tests.fixtures.postgres import PATIENT
from tests.planner.system import System
from tests.simulation.chores import BoundsWatch, Chore, clean_up, operate, plan, read, replace_the_dead, work
from tests.simulation.network import Weather
from tests.simulation.virtual_time import Strands, VirtualClock, VirtualLoop
from tests.simulation.world import GRACE_MS, Producer, Rules, SimulatedAgent, World

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from object_store.local.store import LocalStore

_TABLES: Final = (
    "job_files",
    "jobs",
    "extents",
    "quarantine_candidates",
    "files",
    "commit_results",
    "producers",
    "partitions",
    "topics",
    "sessions",
    "periodic_tasks",
    "object_store",
)
_CLEAR: Final = ";".join(f"DELETE FROM {table}" for table in _TABLES).encode()
#: Deleting is faster while there is little; what it leaves behind goes now and then.
_TRUNCATE: Final = f"TRUNCATE {', '.join(_TABLES)} CASCADE".encode()
_TRUNCATED_EVERY: Final = 50
#: Of each of them a schedule has one: troubles of the network, processes that stand still, deaths.
_WEATHER: Final = ((0.0, 0.02, 0.1), (0.0, 0.02, 0.05), (0.0, 0.01, 0.03))
#: Which share of schedules goes on until nothing is left to do; which of producers has no numbers.
_RESTS: Final = 0.35
_WITHOUT_NUMBERS: Final = 0.25
#: All tables are tiny: planning a statement anew costs more than any plan could save.
_OPTIONS: Final = "-c plan_cache_mode=force_generic_plan"
_LIFE_SECONDS: Final = 14_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a schedule was like, and every invariant that did not hold in it, as sentences."""

    seed: int
    violations: tuple[str, ...]
    trace: tuple[str, ...]
    acknowledged: int
    jobs: int
    troubles: int
    calls: int


class Simulator:
    """Runs schedules one after the other over one database; a context manager."""

    def __init__(self, url: str, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()
        self._clock = VirtualClock()
        self._ids = SeededIds(0, self._clock)
        url = make_conninfo(url, options=_OPTIONS)
        self._catalog = open_catalog(url, self._clock, self._ids, limits=PATIENT)
        self._connection = psycopg.connect(url, autocommit=True)
        self._runs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let connections go."""
        self._catalog.close()
        self._connection.close()

    def run(self, seed: int) -> Outcome:
        """One schedule, from its seed alone."""
        self._connection.execute(_CLEAR if self._runs % _TRUNCATED_EVERY else _TRUNCATE)
        self._runs += 1
        draw = random.Random(seed)
        clock = self._clock
        clock.__init__()  # type: ignore[misc]  # the catalog keeps both; each schedule begins at their beginning
        self._ids.__init__(seed, clock)  # type: ignore[misc]
        loop = VirtualLoop(clock)
        strands = clock.strands = Strands(loop)
        world = World(
            catalog=self._catalog,
            clock=clock,
            ids=self._ids,
            strands=strands,
            weather=Weather(draw, strands),
            draw=draw,
            model=Model(frozenset({"stone"})),
            rules=self._rules,
        )
        try:
            loop.run_until_complete(_live(world))
        except Exception as error:  # noqa: BLE001  # whatever it is, this schedule has shown it
            world.violations.append(f"nothing is raised: {type(error).__name__}: {error}")
        finally:
            strands.end()
            clock.strands = None
            loop.run_until_complete(_cancel_the_rest())
            loop.close()
        return Outcome(
            seed=seed,
            violations=tuple(world.violations),
            trace=tuple(world.weather.trace),
            acknowledged=sum(len(place) for place in world.model.acknowledged.values()),
            jobs=sum(1 for each in world.weather.trace if each.endswith("jobs.complete")),
            troubles=sum(world.weather.seen.values()),
            calls=len(world.weather.trace),
        )


async def _cancel_the_rest() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def _live(world: World) -> None:
    draw = world.draw
    bare = world.store(world.machine("operator")[1])
    verify_binding(bare, world.catalog.store_binding, world.ids)
    world.topics = [
        world.catalog.topics.create("stone", 2, {"cleanup.policy": "compact"}),
        world.catalog.topics.create("silt", 1, {"retention.ms": str(draw.choice((60_000, 10**9)))}),
    ]
    world.agents = [SimulatedAgent(world, f"agent {number}") for number in range(2)]
    for agent in world.agents:
        await agent.start()
    weather = world.weather
    drawn = [draw.choice(shares) for shares in _WEATHER]
    weather.rate, weather.stalls, weather.deaths = world.rules.weather or drawn
    chores = [
        *(Chore(world, f"planner {n}", 15, plan, on_the_dot=True) for n in range(1, draw.randint(1, 2) + 1)),
        Chore(world, "worker 1", 10, work),
        Chore(world, "worker 2", 10, work),
        Chore(world, "cleaner", 25, clean_up),
        Chore(world, "reader", 6, read),
    ]
    watch = BoundsWatch(world)
    tasks = [asyncio.create_task(chore.run()) for chore in chores]
    tasks.append(asyncio.create_task(replace_the_dead(world)))
    await asyncio.wait_for(_trouble(world, watch), _LIFE_SECONDS)
    weather.clear_up()
    for chore in chores:
        chore.stopping = True
        chore.machine.dead = True
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await _stop_agents(world)
    comes_to_rest = draw.random() < _RESTS
    if comes_to_rest:
        await _come_to_rest(world)
    watch.look()
    _judge(world, comes_to_rest=comes_to_rest)


async def _trouble(world: World, watch: BoundsWatch) -> None:
    draw = world.draw
    places = [
        (topic, partition) for topic in tuple(world.topics) for partition in range(topic.partition_count)
    ]
    producers = [
        Producer(world, topic, number, None if draw.random() < _WITHOUT_NUMBERS else 1 + index)
        for index, (topic, number) in enumerate(places)
    ]
    await asyncio.gather(
        *(producer.run(draw.randint(1, 3)) for producer in producers),
        operate(world, watch),
    )


async def _stop_agents(world: World) -> None:
    for agent in world.agents:
        await (agent.die() if agent.machine.dead else agent.stop())


async def _come_to_rest(world: World) -> None:
    """What is begun is finished, what is garbage goes."""
    planner, worker = Chore(world, "last planner", 1, plan), Chore(world, "last worker", 1, work)
    await asyncio.sleep(GRACE_MS / 1000)
    for _ in range(12):
        await planner.once()
        counts = world.catalog.jobs.counts()
        if not counts[JobState.SUBMITTED] + counts[JobState.RUNNING]:
            break
        for _ in range(counts[JobState.SUBMITTED]):
            await worker.once()
    else:
        world.violations.append(f"planning comes to an end: jobs are {world.catalog.jobs.counts()}")
    cleaner = Chore(world, "last cleaner", 1, clean_up)
    # What somebody wrote who was thought dead goes before its owner is forgotten.
    for seconds in (GRACE_MS / 1000 + 30, GRACE_MS / 1000 + 30, world.rules.garbage.owner_keep_ms / 1000 + 1):
        await asyncio.sleep(seconds)
        await cleaner.once()


def _judge(world: World, *, comes_to_rest: bool) -> None:
    """The invariants of the design, of catalog, store, bytes, and of what producers were told.

    What died may have left garbage that nobody had the time to see; after a rest none is left.
    """
    left_out = {DifferenceKind.QUARANTINED}  # as is due to a file whose jobs all died
    if not comes_to_rest:
        left_out.add(DifferenceKind.ORPHAN)
    if world.unfinished:
        world.violations.append(f"every producer gets its answer: {world.unfinished} did not")
    bare = world.store(world.machine("judge")[1])
    report = fsck(world.catalog, bare, world.clock, deep=True)
    world.violations += [
        f"{each.kind.value}: {each.as_dict()}" for each in report.differences if each.kind not in left_out
    ]
    left = {name: number for name, number in report.pending.items() if number}
    if left and comes_to_rest:
        world.violations.append(f"no object leaks once grace has passed: {left}")
    world.violations += _records(world, bare)


def _records(world: World, bare: object) -> list[str]:
    """What producers were told against what readers find, from the log start on."""
    system = System(world.catalog, cast("LocalStore", bare), world.clock, world.ids, world.ids.new_uuid())
    logs, expected = {}, {}
    for topic in world.topics:
        for number in range(topic.partition_count):
            key, place = PartitionId(topic.topic_id, number), (topic.name, number)
            (state,) = world.catalog.topics.states([key])
            logs[place] = [
                ReadRecord(record.offset, record.key or b"", record.value or b"")
                for record in system.read_log(key)
                if record.offset >= state.log_start_offset
            ]
            told = world.model.acknowledged.get(place, {})
            expected[place] = {at: sent for at, sent in told.items() if at >= state.log_start_offset}
    return replace(world.model, acknowledged=expected).problems(logs)
