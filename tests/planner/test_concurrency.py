"""Two planners, ten agents and an operator work concurrently on a real PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

import psycopg

from catalog.database.limits import DatabaseLimits
from catalog.model import JobState, PartitionId
from catalog.open import open_catalog
from core.clock import SystemClock
from core.errors import NotFoundError, StaleStateError
from maintenance.fsck.run import fsck
from maintenance.retention import expire
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings
from tests.catalog.scene import advance_log_start
from tests.planner.system import System

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.open import Catalog
    from core.ids import Ids
    from object_store.local.store import LocalStore

NAMES: Final = ("noisy", "quiet", "changing")
PLANNER: Final = PlannerSettings(table_bytes=1 << 16, max_job_files=5, merge_fan_in=2)
AGENTS: Final = 10
ROUNDS: Final = 5


@dataclass
class ConcurrentActors:
    """What agents, planners and the operator do, several times each."""

    catalog: Catalog
    store: LocalStore
    ids: Ids

    def new_system(self) -> System:
        """Return a system with its own session."""
        return System.start(self.catalog, self.store, SystemClock(), self.ids)  # type: ignore[arg-type]

    def write(self, random: Random) -> None:
        """Write files with two topics, always including the noisy one."""
        agent = self.new_system()
        for number in range(ROUNDS):
            topics = {each.name: each.topic_id for each in self.catalog.topics.list()}
            other = random.choice(NAMES)
            keys = {
                PartitionId(topics[name], random.randrange(2)) for name in ("noisy", other) if name in topics
            }
            agent.produce({key: [(b"%d" % random.randrange(3), b"%d" % number)] for key in keys})

    def plan(self, _random: Random) -> None:
        """Plan and run jobs; jobs whose input has changed are dropped."""
        planner = self.new_system()
        for _ in range(2 * ROUNDS):
            plan_and_submit(self.catalog, planner.clock, self.ids, PLANNER)
            for job in self.catalog.jobs.claim(f"planner {planner.session_id}", 3):
                with suppress(StaleStateError):
                    self.catalog.jobs.complete(planner.write_outputs(job))

    def operate(self, random: Random) -> None:
        """Change settings, delete records, and delete and create a topic."""
        for number in range(ROUNDS):
            policy = ("compact", "delete", "compact,delete")[number % 3]
            self.catalog.topics.alter_config("changing", {"cleanup.policy": policy})
            with suppress(NotFoundError, StaleStateError):
                noisy = self.catalog.topics.get("noisy").topic_id
                advance_log_start(self.catalog.retention, noisy, 0, random.randrange(5))
            self.catalog.topics.delete("changing")
            self.catalog.topics.create("changing", 2, {"cleanup.policy": "compact"})
            expire(self.catalog)


def test_concurrent_actors_cause_no_deadlock_and_all_data_is_compacted(
    catalog_url: str, store: LocalStore, ids: Ids
) -> None:
    """PostgreSQL counts no deadlock, no ingestion file is left, and fsck finds no difference."""
    clock = SystemClock()
    limits = DatabaseLimits(  # no wait for a lock ends early on a slow machine, so only a deadlock is retried
        max_connections=8, commit_connections=AGENTS, commit_lock_seconds=60.0, silent_client_seconds=120.0
    )
    with open_catalog(catalog_url, clock, ids, limits=limits) as catalog:
        actors = ConcurrentActors(catalog, store, ids)
        for name in NAMES:
            catalog.topics.create(name, 2, {"cleanup.policy": "compact"})
        roles: list[Callable[[Random], None]] = [actors.operate, actors.plan, actors.plan]
        roles += [actors.write for _ in range(AGENTS)]
        with ThreadPoolExecutor(len(roles)) as pool:
            for done in [pool.submit(role, Random(seed)) for seed, role in enumerate(roles)]:
                done.result(timeout=600)
        with psycopg.connect(catalog_url) as connection:
            query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            assert connection.execute(query).fetchall() == [(0,)]
        repeated = {name: each.retries for name, each in catalog.operation_counts().items() if each.retries}
        assert not repeated  # the loser of a deadlock would be retried
        actors.plan(Random(0))
        counts = catalog.jobs.counts()
        assert counts[JobState.COMPLETED] > 1
        assert counts[JobState.SUBMITTED] + counts[JobState.RUNNING] == 0
        assert catalog.planning.backlog().ingestion_files == 0
        while catalog.garbage.remove_deleted():
            pass
        assert [each.as_dict() for each in fsck(catalog, store, clock).differences] == []
