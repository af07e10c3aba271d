"""A catalog restored from a backup older than the bucket: losses are reported exactly, the rest works."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from catalog.database.embedded.host import programs
from catalog.model import JobState, PartitionId
from catalog.open import open_catalog
from core.clock import DAY_MS, ManualClock
from core.ids import SeededIds
from maintenance.fsck.report import DifferenceKind
from maintenance.fsck.run import fsck
from maintenance.garbage_collection import collect_garbage
from maintenance.readopt import readopt
from maintenance.settings import MaintenanceSettings
from object_store import names
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from object_store.errors import ObjectNotFoundError
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings
from tests.catalog.scene import advance_log_start
from tests.planner.system import System

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from catalog.open import Catalog
    from maintenance.fsck.report import FsckReport

PLANNER = PlannerSettings(table_bytes=1 << 16, force=True)
GARBAGE = MaintenanceSettings()


@dataclass
class Restored:
    """The original system, the restored catalog, and the objects that each of them knows."""

    system: System
    after: System
    key: PartitionId
    live_in_backup: frozenset[str]
    written_since: frozenset[str]
    missing: frozenset[str]

    def check(self) -> FsckReport:
        return fsck(self.after.catalog, self.after.store, self.after.clock, deep=True)

    def names(self, report: FsckReport, kind: DifferenceKind) -> set[str | None]:
        return {each.object_name for each in report.differences if each.kind is kind}


def objects(system: System) -> frozenset[str]:
    return frozenset(info.name for info in system.store.list(names.COMMON_PREFIX, purpose=Purpose.CHECK))


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
    """Back up while an agent and a job are active, continue, collect garbage, and restore the backup."""
    verify_binding(system.store, system.catalog.store_binding, system.ids)
    topic = system.topic("t", cleanup_policy="compact")
    key = PartitionId(topic.topic_id, 0)
    system.produce({key: [(b"a", b"1"), (b"b", b"1")]})
    system.produce({key: [(b"a", b"2")]})
    compact(system)
    system.produce({key: [(b"c", b"1")]})
    plan_and_submit(system.catalog, system.clock, system.ids, PLANNER)
    (claimed,) = system.catalog.jobs.claim("at work when the backup is taken", 1)
    live_in_backup = _live(system.catalog)
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
        yield Restored(system, after, key, live_in_backup, now - before, live_in_backup - now)


def _live(catalog: Catalog) -> frozenset[str]:
    return frozenset(
        file.object_name for file in catalog.garbage.known_files(limit=100) if file.dead_ms is None
    )


def test_fsck_reports_exactly_the_lost_objects(restored: Restored) -> None:
    """It names the missing objects, and the newer ones, which nothing deletes automatically."""
    verify_binding(
        restored.after.store, restored.after.catalog.store_binding, restored.after.ids
    )  # as each process does
    assert restored.after.catalog.incarnations.ensure().epoch > 0
    assert restored.missing
    report = restored.check()
    of_lost_jobs = {name for name in restored.written_since if "/compact/" in name}
    assert restored.names(report, DifferenceKind.MISSING_OBJECT) == restored.missing
    assert restored.names(report, DifferenceKind.ORPHAN) == of_lost_jobs
    assert len(report.differences) == len(restored.missing) + len(of_lost_jobs)
    assert report.pending["unsettled_objects"] == len(restored.written_since - of_lost_jobs) > 0


def test_objects_newer_than_the_backup_are_not_deleted(restored: Restored) -> None:
    """Garbage collection notices the restore by itself, and keeps them however much time passes."""
    before = objects(restored.after)
    assert isinstance(restored.after.clock, ManualClock)
    for _ in range(3):
        restored.after.clock.advance(2 * DAY_MS / 1000)
        collect_garbage(restored.after.catalog, restored.after.store, restored.after.clock, GARBAGE)
    assert objects(restored.after) == before


def test_lost_files_are_committed_again(restored: Restored) -> None:
    """Records of topics that are lost are rejected on request, and garbage is deleted afterwards."""
    after, key = restored.after, restored.key
    verify_binding(after.store, after.catalog.store_binding, after.ids)
    (state,) = after.catalog.topics.states([key])
    reports = [
        readopt(after.catalog, after.store, apply=apply, discard_unknown_topics=apply)
        for apply in (False, True)
    ]
    for report in reports:
        lost = {file.object_name for file in report.files}
        assert lost == {name for name in restored.written_since if "/ingest/" in name}
        assert {file.acknowledged for file in report.files} == {None}
        assert report.records == 2
    assert [report.rejected for report in reports] == [0, 1]
    extents = after.catalog.extents.from_offset(key.topic_id, 0, state.log_end_offset)
    assert [record.value for extent in extents for record in after.read(extent)] == [b"2"]
    assert [extent.leader_epoch for extent in extents] == [after.catalog.incarnations.current().epoch]
    again = readopt(after.catalog, after.store, apply=True)
    assert not again.files
    assert not list(after.catalog.lost_commits.unsettled_sessions())
    assert isinstance(after.clock, ManualClock)
    after.clock.advance(2 * DAY_MS / 1000)
    before = objects(after)
    collect_garbage(after.catalog, after.store, after.clock, GARBAGE)
    assert {extent.object_name for extent in extents} <= objects(after) < before


def test_a_restored_system_reads_remaining_data_and_continues(restored: Restored) -> None:
    """Agents start, and logs continue at their end.

    Reading lost data raises an error with the object's name.
    """
    after, key = restored.after, restored.key
    after.catalog.sessions.register(after.session_id, "an agent that starts")
    (state,) = after.catalog.topics.states([key])
    after.produce({key: [(b"d", b"1")]})
    extents = after.catalog.extents.from_offset(key.topic_id, 0, state.log_start_offset)
    assert extents[-1].base_offset == state.log_end_offset
    assert [record.value for record in after.read(extents[-1])] == [b"1"]
    for extent in extents:
        if extent.object_name in restored.missing:
            with pytest.raises(ObjectNotFoundError, match=extent.object_name.rsplit("/", 1)[-1]):
                after.read(extent)
        else:
            assert after.read(extent)


def test_lost_data_can_be_deleted_and_the_rest_is_compacted(restored: Restored) -> None:
    after, key = restored.after, restored.key
    after.catalog.sessions.register(after.session_id, "an agent that starts")
    (state,) = after.catalog.topics.states([key])
    advance_log_start(after.catalog.retention, key.topic_id, 0, state.log_end_offset)
    after.catalog.retention.remove_expired(key.topic_id, 0)
    after.produce({key: [(b"d", b"1")]})
    after.produce({key: [(b"d", b"2")]})
    compact(after)
    assert [record.value for record in after.read_log(key)] == [b"2"]
    assert after.catalog.jobs.counts()[JobState.COMPLETED] > 0
    assert not restored.names(restored.check(), DifferenceKind.MISSING_OBJECT)
