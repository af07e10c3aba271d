"""One schedule from one seed: set up a system, run it under faults, stop it, and check all invariants.

The catalog is the real one, in a PostgreSQL without durability. Each of its operations is a transaction, and
other processes may run between any two of them. Concurrency within transactions is not simulated; tests of
`tests/catalog` with real threads cover it. A model of the catalog in memory would allow about ten times as
many schedules per minute. But the decisions under test (claims, sequences, publications, fences, garbage) are
SQL, and a model could be wrong itself.

Everything else is virtual: time, store, network and processes. A schedule takes minutes of virtual time and
makes about 170 calls to catalog and store. It is short, because rare defects take two or three faults at the
right moments, not many faults. A third of the schedules continue until all jobs are finished and all garbage
is collected, a day later. The others are checked when the faults end. `defects.py` plants defects that
schedules must find.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

import psycopg
from psycopg.conninfo import make_conninfo

from catalog.database.pool import Database
from catalog.model import JobState, PartitionId
from catalog.open import Catalog
from core.ids import SeededIds
from maintenance.fsck.report import DifferenceKind
from maintenance.fsck.run import fsck
from object_store.binding import verify_binding
from tests.fixtures.postgres import PATIENT
from tests.planner.system import System
from tests.simulation import transactions
from tests.simulation.background_tasks import (
    BackgroundTask,
    BoundsChecker,
    collect,
    plan,
    read,
    restart_crashed_agents,
    run_operator,
    watch_silence,
    work,
)
from tests.simulation.environment import CONFIRM_MS, GRACE_MS, Environment, Producer, Rules, SimulatedAgent
from tests.simulation.faults import FaultInjector
from tests.simulation.model import Model, ReadRecord
from tests.simulation.transactions import TransactionalClient, TransactionModel
from tests.simulation.virtual_time import FiberScheduler, VirtualClock, VirtualLoop

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from object_store.local.store import LocalStore

_TABLES: Final = (
    "pending_offsets",
    "committed_offsets",
    "consumer_groups",
    "transaction_groups",
    "transaction_partitions",
    "transactional_ids",
    "aborted_transactions",
    "job_files",
    "jobs",
    "extents",
    "quarantine_candidates",
    "files",
    "commit_results",
    "producers",
    "partitions",
    "topics",
    "deleted_topics",
    "sessions",
    "lost_commits",
    "sequence_gaps",
    "periodic_tasks",
    "compaction_breaker",
    "deletions",
    "object_store",
)
_RESET: Final = "UPDATE reachability SET since_ms = 0, seen_ms = 0"
_CLEAR: Final = ";".join((*(f"DELETE FROM {table}" for table in _TABLES), _RESET)).encode()
#: DELETE is faster for few rows; a TRUNCATE now and then removes the dead ones.
_TRUNCATE: Final = f"TRUNCATE {', '.join(_TABLES)} CASCADE; {_RESET}".encode()
_TRUNCATE_EVERY: Final = 50
#: A schedule draws one of each: the rate of network faults, of stalls, and of crashes.
_FAULT_RATES: Final = ((0.0, 0.02, 0.1), (0.0, 0.02, 0.05), (0.0, 0.01, 0.03))
#: Fraction of schedules that run until idle, and of producers that are not idempotent.
# Twice within the time after which silence is confirmed, and without a gap that counts as an outage
_LOOK_SECONDS = CONFIRM_MS / 2000
_IDLE_SHARE: Final = 0.35
_NON_IDEMPOTENT_SHARE: Final = 0.25
#: All tables are tiny: planning a statement again costs more than a better plan could save.
_OPTIONS: Final = "-c plan_cache_mode=force_generic_plan"
_MAX_VIRTUAL_SECONDS: Final = 14_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What happened in a schedule, with a sentence for each violated invariant.

    `unknown` transactions got no response to their commit.
    """

    seed: int
    violations: tuple[str, ...]
    trace: tuple[str, ...]
    acknowledged: int
    jobs: int
    faults: int
    calls: int
    committed: int
    unknown: int


class Simulator:
    """Runs schedules one after another over one database; a context manager."""

    def __init__(self, url: str, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()
        self._clock = VirtualClock()
        self._ids = SeededIds(0, self._clock)
        url = make_conninfo(url, options=_OPTIONS)
        self._database = Database(url, self._clock, self._ids, PATIENT)
        self._connection = psycopg.connect(url, autocommit=True)
        self._runs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._database.close()
        self._connection.close()

    def run(self, seed: int) -> Outcome:
        """Run the schedule of a seed."""
        self._connection.execute(_CLEAR if self._runs % _TRUNCATE_EVERY else _TRUNCATE)
        self._runs += 1
        rng = random.Random(seed)
        clock = self._clock
        clock.__init__()  # type: ignore[misc]  # the catalog keeps both objects; a schedule resets them
        self._ids.__init__(seed, clock)  # type: ignore[misc]
        loop = VirtualLoop(clock)
        fibers = clock.fibers = FiberScheduler(loop)
        env = Environment(
            # A new one does not know the commits of the last schedule, which the tables have lost.
            catalog=Catalog(self._database, clock, self._ids),
            clock=clock,
            ids=self._ids,
            fibers=fibers,
            faults=FaultInjector(rng, fibers),
            rng=rng,
            model=Model(frozenset({"stone"})),
            rules=self._rules,
        )
        try:
            loop.run_until_complete(_run_schedule(env))
        except Exception as error:  # noqa: BLE001  # every exception is a violation
            env.violations.append(f"unexpected exception: {type(error).__name__}: {error}")
        finally:
            fibers.end()
            clock.fibers = None
            loop.run_until_complete(_cancel_all_tasks())
            loop.close()
        ended = [] if env.transactions is None else env.transactions.transactions
        return Outcome(
            seed=seed,
            violations=tuple(env.violations),
            trace=tuple(env.faults.trace),
            acknowledged=sum(len(partition) for partition in env.model.acknowledged.values()),
            jobs=sum(1 for each in env.faults.trace if each.endswith("jobs.complete")),
            faults=sum(env.faults.counts.values()),
            calls=len(env.faults.trace),
            committed=sum(each.commits is True for each in ended),
            unknown=sum(each.commits is None for each in ended),
        )


async def _cancel_all_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def _run_schedule(env: Environment) -> None:
    rng = env.rng
    bare = env.store(env.process("operator")[1])
    verify_binding(bare, env.catalog.store_binding, env.ids)
    env.topics = [
        env.catalog.topics.create("stone", 2, {"cleanup.policy": "compact"}),
        env.catalog.topics.create("silt", 1, {"retention.ms": str(rng.choice((60_000, 10**9)))}),
    ]
    env.agents = [SimulatedAgent(env, f"agent {number}") for number in range(2)]
    for agent in env.agents:
        await agent.start()
    if env.rules.transactions:
        env.transactions = TransactionModel.start(env)
    faults = env.faults
    drawn = [rng.choice(rates) for rates in _FAULT_RATES]
    faults.rate, faults.stalls, faults.crashes = env.rules.fault_rates or drawn
    background = [
        *(
            BackgroundTask(env, f"planner {n}", 15, plan, aligned=True)
            for n in range(1, rng.randint(1, 2) + 1)
        ),
        BackgroundTask(env, "worker 1", 10, work),
        BackgroundTask(env, "worker 2", 10, work),
        BackgroundTask(env, "cleaner", 25, collect),
        BackgroundTask(env, "reader", 6, read),
    ]
    if env.transactions is not None:
        background += [
            BackgroundTask(env, "reader of committed records", 6, transactions.read),
            BackgroundTask(env, "transactions", 10, transactions.abort_late),
        ]
    bounds = BoundsChecker(env)
    tasks = [asyncio.create_task(each.run()) for each in background]
    tasks += [asyncio.create_task(each(env)) for each in (restart_crashed_agents, watch_silence)]
    await asyncio.wait_for(_run_workload(env, bounds), _MAX_VIRTUAL_SECONDS)
    faults.disable()
    for each in background:
        each.stopping = True
        each.process.dead = True
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await _stop_agents(env)
    if env.transactions is not None:
        await _end_transactions(env, env.transactions)
    runs_until_idle = rng.random() < _IDLE_SHARE
    if runs_until_idle:
        await _run_until_idle(env)
    bounds.check()
    _check_invariants(env, runs_until_idle=runs_until_idle)


async def _run_workload(env: Environment, bounds: BoundsChecker) -> None:
    rng = env.rng
    partitions = [
        (topic, partition) for topic in tuple(env.topics) for partition in range(topic.partition_count)
    ]
    producers = [
        Producer(env, topic, number, None if rng.random() < _NON_IDEMPOTENT_SHARE else 1 + index)
        for index, (topic, number) in enumerate(partitions)
    ]
    clients = [
        TransactionalClient(env, env.transactions, number)
        for number in range(transactions.CLIENTS)
        if env.transactions is not None
    ]
    await asyncio.gather(
        *(producer.run(rng.randint(1, 3)) for producer in producers),
        run_operator(env, bounds),
        *(client.run(rng.randint(2, 5)) for client in clients),
    )


async def _stop_agents(env: Environment) -> None:
    for agent in env.agents:
        await (agent.crash() if agent.process.dead else agent.stop())


async def _end_transactions(env: Environment, model: TransactionModel) -> None:
    """Let all transactions time out; check what readers of committed records see then."""
    await asyncio.sleep(transactions.TIMEOUT_MS / 1000 + 1)
    await BackgroundTask(env, "last transactions", 1, transactions.abort_late).once()
    env.violations += model.check(env.store(env.process("checker")[1]))


async def _run_until_idle(env: Environment) -> None:
    """Run until all jobs are finished and all garbage is collected."""
    planner = BackgroundTask(env, "last planner", 1, plan)
    worker = BackgroundTask(env, "last worker", 1, work)
    await asyncio.sleep(GRACE_MS / 1000)
    for _ in range(24):
        await asyncio.sleep(_LOOK_SECONDS)
        await planner.once()
        counts = env.catalog.jobs.counts()
        if not counts[JobState.SUBMITTED] + counts[JobState.RUNNING]:
            break
        for _ in range(counts[JobState.SUBMITTED]):
            await worker.once()
    else:
        env.violations.append(f"planning must end: jobs are {env.catalog.jobs.counts()}")
    cleaner = BackgroundTask(env, "last cleaner", 1, collect)
    # A silent writer is marked, then fenced. Its objects are deleted before its session is.
    for seconds in (
        GRACE_MS / 1000 + 30,
        _LOOK_SECONDS,
        _LOOK_SECONDS,
        GRACE_MS / 1000 + 30,
        env.rules.garbage.owner_keep_ms / 1000 + 1,
    ):
        await asyncio.sleep(seconds)
        await cleaner.once()


def _check_invariants(env: Environment, *, runs_until_idle: bool) -> None:
    """Check the invariants of catalog, store and bytes, and all acknowledged records.

    Crashed processes may leave garbage that was not collected yet. None is left after `_run_until_idle`.
    """
    left_out = {DifferenceKind.QUARANTINED}  # expected for a file whose jobs all failed
    if not runs_until_idle:
        left_out.add(DifferenceKind.ORPHAN)
    if env.unfinished:
        env.violations.append(f"{env.unfinished} producers did not finish")
    bare = env.store(env.process("checker")[1])
    report = fsck(env.catalog, bare, env.clock, deep=True)
    env.violations += [
        f"{each.kind.value}: {each.as_dict()}" for each in report.differences if each.kind not in left_out
    ]
    left = {name: number for name, number in report.pending.items() if number}
    if left and runs_until_idle:
        env.violations.append(f"objects leaked after the grace period: {left}")
    env.violations += _check_records(env, bare)


def _check_records(env: Environment, bare: object) -> list[str]:
    """Compare the acknowledged records with those that readers find, from the log start offset on."""
    system = System(
        env.catalog,
        cast("LocalStore", bare),
        env.clock,
        env.ids,
        env.ids.new_uuid(),
    )
    logs, expected = {}, {}
    for topic in env.topics:
        for number in range(topic.partition_count):
            key, partition = PartitionId(topic.topic_id, number), (topic.name, number)
            (state,) = env.catalog.topics.states([key])
            logs[partition] = [
                ReadRecord(record.offset, record.key or b"", record.value or b"")
                for record in system.read_log(key)
                if record.offset >= state.log_start_offset
            ]
            acknowledged = env.model.acknowledged.get(partition, {})
            expected[partition] = {
                offset: sent for offset, sent in acknowledged.items() if offset >= state.log_start_offset
            }
    return replace(env.model, acknowledged=expected).problems(logs)
