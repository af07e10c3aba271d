"""A catalog from a backup older than the bucket: what is lost is said exactly, nothing else breaks."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from catalog.database.postgres_host import programs
from catalog.lifecycle.repair import RemovedWriters
from catalog.model import JobState, PartitionId
from catalog.open import open_catalog
from core.clock import ManualClock
from core.ids import SeededIds
from maintenance.fsck.report import DifferenceKind
from maintenance.fsck.run import fsck
from maintenance.garbage_collection import DAY_MS, GarbageSettings, collect_garbage
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from object_store.errors import ObjectNotFoundError
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings
from tests.planner.system import System

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from catalog.open import Catalog
    from maintenance.fsck.report import FsckReport

PLANNER = PlannerSettings(table_bytes=1 << 16, force=True)
GARBAGE = GarbageSettings()


@dataclass
class Restored:
    """The system as it lived on, the catalog of its backup, and what both are known to hold."""

    system: System
    after: System
    key: PartitionId
    live_then: frozenset[str]
    written_since: frozenset[str]
    gone: frozenset[str]

    def check(self) -> FsckReport:
        return fsck(self.after.catalog, self.after.store, self.after.clock, deep=True)

    def names(self, report: FsckReport, kind: DifferenceKind) -> set[str | None]:
        return {each.object_name for each in report.differences if each.kind is kind}


def objects(system: System) -> frozenset[str]:
    return frozenset(info.name for info in system.store.list("v1/", purpose=Purpose.CHECK))


def compact(system: System) -> None:
    plan_and_submit(system.catalog, system.clock, system.ids, PLANNER)
    system.run_jobs()


def run(*command: str | Path) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def restored(
    system: System, catalog_url: str, new_catalog_url: Callable[..., str], tmp_path: Path
) -> Iterator[Restored]:
    """Backed up with an agent and a job at work; then both went on, garbage was collected, and more came."""
    verify_binding(system.store, system.catalog.store_binding, system.ids)
    topic = system.topic("t", cleanup_policy="compact")
    key = PartitionId(topic.topic_id, 0)
    system.produce({key: [(b"a", b"1"), (b"b", b"1")]})
    system.produce({key: [(b"a", b"2")]})
    compact(system)
    system.produce({key: [(b"c", b"1")]})
    plan_and_submit(system.catalog, system.clock, system.ids, PLANNER)
    (claimed,) = system.catalog.jobs.claim("at work when the backup is taken", 1)
    live_then = _live(system.catalog)
    backup, before = tmp_path / "backup.sql", objects(system)
    run(programs() / "pg_dump", "--no-owner", f"--file={backup}", catalog_url)

    system.catalog.jobs.complete(system.write_outputs(claimed))
    system.produce({key: [(b"b", b"2")]})
    other = system.topic("later")
    system.produce({PartitionId(other.topic_id, 0): [(b"x", b"1")]})
    assert isinstance(system.clock, ManualClock)
    system.clock.advance(2 * GARBAGE.grace_ms / 1000)
    system.catalog.sessions.heartbeat(system.session_id)
    assert collect_garbage(system.catalog, system.store, system.clock, GARBAGE).dead_files > 0
    now = objects(system)

    url = new_catalog_url(empty=True)
    run(programs() / "psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--file={backup}", url)
    clock = ManualClock(system.clock.now_ms())
    ids = SeededIds(99, clock)
    with open_catalog(url, clock, ids) as catalog:
        after = System(catalog, system.store, clock, ids, ids.new_uuid())
        yield Restored(system, after, key, live_then, now - before, live_then - now)


def _live(catalog: Catalog) -> frozenset[str]:
    return frozenset(
        file.object_name for file in catalog.garbage.known_files("v1/", limit=100) if file.dead_ms is None
    )


def test_fsck_says_exactly_what_is_lost(restored: Restored) -> None:
    """Objects that went, by name; and those that came, which nobody will delete by himself."""
    verify_binding(
        restored.after.store, restored.after.catalog.store_binding, restored.after.ids
    )  # as each process does
    assert restored.after.catalog.repair.remove_active_writers() == RemovedWriters(sessions=1, jobs=1)
    assert restored.gone
    report = restored.check()
    assert restored.names(report, DifferenceKind.MISSING_OBJECT) == restored.gone
    assert restored.names(report, DifferenceKind.ORPHAN) == restored.written_since
    assert len(report.differences) == len(restored.gone) + len(restored.written_since)


def test_nothing_is_deleted_that_a_younger_backup_may_name(restored: Restored) -> None:
    """However much time passes: what was written since the backup belongs to nobody who is known."""
    restored.after.catalog.repair.remove_active_writers()
    before = objects(restored.after)
    assert isinstance(restored.after.clock, ManualClock)
    for _ in range(3):
        restored.after.clock.advance(2 * DAY_MS / 1000)
        collect_garbage(restored.after.catalog, restored.after.store, restored.after.clock, GARBAGE)
    assert objects(restored.after) == before


def test_without_forgetting_its_writers_they_would_pass_for_dead(restored: Restored) -> None:
    """Which is why it is the first step."""
    assert isinstance(restored.after.clock, ManualClock)
    for _ in range(3):
        restored.after.clock.advance(GARBAGE.grace_ms / 1000 + 1)
        collect_garbage(restored.after.catalog, restored.after.store, restored.after.clock, GARBAGE)
    assert not restored.written_since <= objects(restored.after)


def test_what_is_there_is_read_and_goes_on(restored: Restored) -> None:
    """Agents start, logs go on where they ended; who asks for what is lost is told which object is."""
    after, key = restored.after, restored.key
    after.catalog.repair.remove_active_writers()
    after.catalog.sessions.register(after.session_id, "an agent that starts")
    (state,) = after.catalog.topics.states([key])
    after.produce({key: [(b"d", b"1")]})
    extents = after.catalog.extents.from_offset(key.topic_id, 0, state.log_start_offset)
    assert extents[-1].base_offset == state.log_end_offset
    assert [record.value for record in after.read(extents[-1])] == [b"1"]
    for extent in extents:
        if extent.object_name in restored.gone:
            with pytest.raises(ObjectNotFoundError, match=extent.object_name.rsplit("/", 1)[-1]):
                after.read(extent)
        else:
            assert after.read(extent)


def test_what_is_lost_can_be_cut_off_and_the_rest_is_compacted(restored: Restored) -> None:
    after, key = restored.after, restored.key
    after.catalog.repair.remove_active_writers()
    after.catalog.sessions.register(after.session_id, "an agent that starts")
    (state,) = after.catalog.topics.states([key])
    after.catalog.retention.advance_log_start(key.topic_id, 0, state.log_end_offset)
    after.catalog.retention.remove_expired(key.topic_id, 0)
    after.produce({key: [(b"d", b"1")]})
    after.produce({key: [(b"d", b"2")]})
    compact(after)
    assert [record.value for record in after.read_log(key)] == [b"2"]
    assert after.catalog.jobs.counts()[JobState.COMPLETED] > 0
    assert not restored.names(restored.check(), DifferenceKind.MISSING_OBJECT)
