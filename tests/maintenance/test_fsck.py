"""fsck finds every kind of damage, and nothing in a sound system."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest

from catalog.model import Exactness, PartitionId
from maintenance.fsck import DifferenceKind, FsckReport, fsck, unique_keys
from maintenance.garbage_collection import collect_garbage
from maintenance.settings import MaintenanceSettings
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from object_store.errors import ForeignStoreError
from object_store.names import IDENTITY_NAME, compacted_name, ingestion_name
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings
from tests.catalog.scene import advance_log_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from catalog.lifecycle.garbage import CatalogFile
    from catalog.model import Extent
    from object_store.interface import ObjectInfo
    from object_store.local.store import LocalStore
    from tests.planner.system import System

pytestmark = pytest.mark.integration


@pytest.fixture
def damage(catalog_url: str) -> Callable[[str], None]:
    """Change rows directly in PostgreSQL, without checking constraints."""

    def run(statement: str) -> None:
        with psycopg.connect(catalog_url, autocommit=True) as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute(statement.encode())

    return run


@pytest.fixture
def populated(system: System) -> System:
    """Two topics that were compacted once, with dead files in their grace period and new ingestion files."""
    keyed = system.topic("keyed", 2, cleanup_policy="compact")
    plain = system.topic("plain", 1)
    keys = [PartitionId(keyed.topic_id, 0), PartitionId(keyed.topic_id, 1), PartitionId(plain.topic_id, 0)]
    for number in range(6):
        system.produce({key: [(b"a", b"%d" % number), (b"%d" % number, b"v" * 50)] for key in keys})
        if number == 2:
            plan_and_submit(system.catalog, system.clock, system.ids, PlannerSettings())
            system.run_jobs()
    return system


def run_fsck(system: System, *, deep: bool = False) -> FsckReport:
    return fsck(system.catalog, system.store, system.clock, deep=deep)


def difference_keys(
    system: System, *, deep: bool = False
) -> list[tuple[DifferenceKind, str | None, int | None]]:
    differences = run_fsck(system, deep=deep).differences
    for each in differences:
        assert each.expected
        assert each.found
        assert each.remedy
    return [(each.kind, each.topic, each.partition) for each in differences]


def live_files(system: System, kind: str) -> list[CatalogFile]:
    files = system.catalog.garbage.known_files("")
    return [file for file in files if file.dead_ms is None and file.kind == kind]


def test_an_empty_system_has_no_differences(system: System) -> None:
    report = run_fsck(system, deep=True)
    assert (report.differences, report.differences_total, dict(report.pending)) == ((), 0, {})


def test_a_populated_system_has_no_differences_and_the_report_counts_the_checks(populated: System) -> None:
    """The dead files are pending."""
    report = run_fsck(populated, deep=True)
    assert report.as_dict()["differences"] == []
    assert report.checked["topics"] == 2
    assert report.checked["partitions"] == 3
    assert report.checked["extents"] == 12  # per partition: one in a compacted and three in ingestion files
    assert report.checked["files"] == 8
    assert report.checked["files_read"] == 5
    assert report.checked["records_read"] == 3 * 6 + 2 * 4 + 6
    assert report.pending["dead_files_objects"] == 3


def test_fsck_changes_nothing(populated: System) -> None:
    """The objects stay as they are. A deep check costs one GET per file and per extent with unique keys."""
    before = [
        (info.name, info.size, info.modified_ms) for info in populated.store.list("", purpose=Purpose.FSCK)
    ]
    gets = populated.store.counts.snapshot()
    run_fsck(populated, deep=True)
    after = [
        (info.name, info.size, info.modified_ms) for info in populated.store.list("", purpose=Purpose.FSCK)
    ]
    assert before == after
    requests = (populated.store.counts.snapshot() - gets).as_dict()
    assert list(requests) == ["fsck"]
    assert requests["fsck"]["get_requests"] == 5 + 2
    assert requests["fsck"]["put_requests"] == requests["fsck"]["delete_requests"] == 0


def test_verifying_the_store_costs_one_get(populated: System) -> None:
    verify_binding(populated.store, populated.catalog.store_binding, populated.ids)
    before = populated.store.counts.snapshot()
    assert run_fsck(populated).differences == ()
    requests = (populated.store.counts.snapshot() - before).as_dict()["check"]
    assert (requests["get_requests"], requests["list_requests"], requests["put_requests"]) == (1, 0, 0)


def test_the_store_of_another_catalog_is_rejected(populated: System, other_store: LocalStore) -> None:
    """No lost object is reported."""
    verify_binding(populated.store, populated.catalog.store_binding, populated.ids)
    with pytest.raises(ForeignStoreError, match=r"objects are in file:.*is another object store"):
        fsck(populated.catalog, other_store, populated.clock)


def test_an_emptied_store_is_the_first_difference(populated: System) -> None:
    verify_binding(populated.store, populated.catalog.store_binding, populated.ids)
    everything = [info.name for info in populated.store.list("", purpose=Purpose.FSCK)]
    populated.store.delete(everything, purpose=Purpose.FSCK)
    first, *others = run_fsck(populated).differences
    assert (first.kind, first.object_name) == (DifferenceKind.STORE_IDENTITY, IDENTITY_NAME)
    assert "emptied" in first.found
    assert {each.kind for each in others} == {DifferenceKind.MISSING_OBJECT}


def test_records_are_named_only_for_the_differences_that_are_kept(populated: System) -> None:
    """With the wrong store, every file is missing, and each has thousands of extents."""
    files = [*live_files(populated, "ingestion"), *live_files(populated, "compacted")]
    for file in files:
        populated.path_of(file.object_name).unlink()

    def queries() -> int:
        found = populated.catalog.operation_counts().get("planning.extents_of_files")
        return 0 if found is None else found.calls

    before = queries()
    report = fsck(populated.catalog, populated.store, populated.clock, max_differences=1)
    assert report.differences_total == len(files) > 1
    assert queries() == before + 1


@pytest.mark.parametrize("kind", ["ingestion", "compacted"])
def test_a_missing_object_is_found(populated: System, kind: str) -> None:
    """Its records are named, so that DeleteRecords can pass over them."""
    file = live_files(populated, kind)[0]
    populated.path_of(file.object_name).unlink()
    (difference,) = run_fsck(populated, deep=True).differences
    assert (difference.kind, difference.object_name) == (DifferenceKind.MISSING_OBJECT, file.object_name)
    names = {topic.topic_id: topic.name for topic in populated.catalog.topics.list()}
    lost = [
        f"{names[extent.topic_id]}-{extent.partition}: {extent.base_offset} to {extent.last_offset}"
        for extent in populated.catalog.planning.extents_of_files([file.file_id])
    ]
    assert difference.found == f"no such object with {', '.join(lost)}"


@pytest.mark.parametrize("kind", ["ingestion", "compacted"])
def test_a_truncated_object_is_found(populated: System, kind: str) -> None:
    file = live_files(populated, kind)[0]
    os.truncate(populated.path_of(file.object_name), file.size - 1)
    (difference,) = run_fsck(populated).differences
    assert difference.kind is DifferenceKind.OBJECT_SIZE
    assert (difference.expected, difference.found) == (f"{file.size} bytes", f"{file.size - 1} bytes")
    assert {kind for kind, _, _ in difference_keys(populated, deep=True)} == {
        DifferenceKind.OBJECT_SIZE,
        DifferenceKind.CORRUPT,
    }


@pytest.mark.parametrize("kind", ["ingestion", "compacted"])
@pytest.mark.parametrize("position", [0, 9, 100, 300, -1, -70])
def test_a_flipped_bit_is_found_by_a_deep_check(populated: System, kind: str, position: int) -> None:
    path = populated.path_of(live_files(populated, kind)[0].object_name)
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)
    assert difference_keys(populated) == []
    assert [kind for kind, _, _ in difference_keys(populated, deep=True)] == [DifferenceKind.CORRUPT]


def test_swapped_objects_are_found_by_a_deep_check(populated: System) -> None:
    one, two = (populated.path_of(file.object_name) for file in live_files(populated, "ingestion")[:2])
    assert one.stat().st_size == two.stat().st_size
    two.write_bytes(one.read_bytes())
    assert difference_keys(populated) == []
    assert DifferenceKind.CONTENT in {kind for kind, _, _ in difference_keys(populated, deep=True)}


def test_a_gap_between_extents_is_found(populated: System, damage: Callable[[str], None]) -> None:
    damage("DELETE FROM extents WHERE base_offset = 8 AND partition = 1")
    assert difference_keys(populated) == [
        (DifferenceKind.COVERAGE, "keyed", 1),
        (DifferenceKind.SUMS, "keyed", 1),
        (DifferenceKind.FILE_COUNTS, None, None),
    ]


@pytest.mark.parametrize("base_offset", [0, 10])
def test_a_log_without_its_first_or_last_extent_is_found(
    populated: System, damage: Callable[[str], None], base_offset: int
) -> None:
    damage(f"DELETE FROM extents WHERE base_offset = {base_offset} AND partition = 1")
    assert difference_keys(populated) == [
        (DifferenceKind.COVERAGE, "keyed", 1),
        (DifferenceKind.SUMS, "keyed", 1),
        (DifferenceKind.FILE_COUNTS, None, None),
    ]


def test_wrong_totals_are_found(populated: System, damage: Callable[[str], None]) -> None:
    damage("UPDATE partitions SET live_bytes = live_bytes + 1 WHERE partition = 1")
    assert difference_keys(populated) == [(DifferenceKind.SUMS, "keyed", 1)]


@pytest.mark.parametrize("page", [1, 2, 3])
def test_boundaries_between_pages_are_checked(
    populated: System, damage: Callable[[str], None], page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maintenance.fsck.partitions.EXTENTS_AT_ONCE", page)
    topic = populated.catalog.topics.get("plain")
    for start in (1, 6, 9, 12):
        advance_log_start(populated.catalog.retention, topic.topic_id, 0, start)
        assert difference_keys(populated, deep=True) == []
    damage("UPDATE extents SET last_offset = last_offset + 1 WHERE base_offset IN (6, 8) AND partition = 1")
    assert difference_keys(populated) == [(DifferenceKind.COVERAGE, "keyed", 1)] * 2
    damage("DELETE FROM extents WHERE base_offset IN (6, 8) AND partition = 1")
    assert difference_keys(populated) == [
        (DifferenceKind.COVERAGE, "keyed", 1),
        (DifferenceKind.SUMS, "keyed", 1),
        (DifferenceKind.FILE_COUNTS, None, None),
        (DifferenceKind.FILE_COUNTS, None, None),
    ]


def test_overlapping_extents_are_found(populated: System, damage: Callable[[str], None]) -> None:
    damage("UPDATE extents SET last_offset = last_offset + 1 WHERE base_offset = 8 AND partition = 1")
    assert difference_keys(populated) == [(DifferenceKind.COVERAGE, "keyed", 1)]


def test_bounds_out_of_order_are_found(populated: System, damage: Callable[[str], None]) -> None:
    damage("ALTER TABLE partitions DROP CONSTRAINT bounds_ordered")
    damage("UPDATE partitions SET last_stable_offset = high_watermark + 1 WHERE partition = 1")
    assert difference_keys(populated) == [(DifferenceKind.BOUNDS, "keyed", 1)]


def test_an_impossible_record_count_is_found(populated: System, damage: Callable[[str], None]) -> None:
    damage("ALTER TABLE extents DROP CONSTRAINT count_fits")
    damage("UPDATE extents SET record_count = 3 WHERE base_offset = 8 AND partition = 1")
    assert difference_keys(populated) == [(DifferenceKind.RECORD_COUNT, "keyed", 1)]


@pytest.mark.parametrize("base_offset", [0, 8])
def test_a_wrong_record_count_is_found_by_a_deep_check(
    populated: System, damage: Callable[[str], None], base_offset: int
) -> None:
    damage(f"UPDATE extents SET record_count = 1 WHERE base_offset = {base_offset} AND partition = 1")
    assert difference_keys(populated) == []
    assert difference_keys(populated, deep=True) == [(DifferenceKind.RECORD_COUNT, "keyed", 1)]


def test_a_wrong_position_is_found_by_a_deep_check(populated: System, damage: Callable[[str], None]) -> None:
    damage("UPDATE extents SET position = position + 1 WHERE base_offset = 8 AND partition = 1")
    assert difference_keys(populated, deep=True) == [(DifferenceKind.CONTENT, "keyed", 1)]


def test_wrong_offsets_are_found_by_a_deep_check(populated: System, damage: Callable[[str], None]) -> None:
    """The extent claims two more offsets than its bytes have, which are neither records nor holes."""
    damage("UPDATE extents SET offset_shift = offset_shift - 1 WHERE base_offset = 8 AND partition = 1")
    kinds = {kind for kind, _, _ in difference_keys(populated, deep=True)}
    assert kinds <= {DifferenceKind.CONTENT, DifferenceKind.RECORD_COUNT}
    assert kinds


def test_wrong_timestamps_are_found_by_a_deep_check(populated: System, damage: Callable[[str], None]) -> None:
    damage("UPDATE extents SET max_timestamp = 5 WHERE base_offset = 8 AND partition = 1")
    assert difference_keys(populated, deep=True) == [(DifferenceKind.CONTENT, "keyed", 1)]


def test_an_extent_without_a_section_in_its_file_is_found(
    populated: System, damage: Callable[[str], None]
) -> None:
    compacted = live_files(populated, "compacted")
    plain = populated.catalog.topics.get("plain").topic_id
    keyed_file = next(
        extent.file_id
        for extent in populated.catalog.extents.from_offset(
            populated.catalog.topics.get("keyed").topic_id, 0, 0
        )
    )
    assert keyed_file in {file.file_id for file in compacted}
    damage(f"UPDATE extents SET file_id = '{keyed_file}' WHERE topic_id = '{plain}' AND base_offset = 0")
    assert (DifferenceKind.CONTENT, "plain", 0) in difference_keys(populated, deep=True)


def test_a_key_that_occurs_twice_in_an_extent_of_unique_keys_is_found_and_repaired(
    system: System, damage: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any number of passes. Afterwards, the partition is deduplicated again."""
    key = PartitionId(system.topic("keyed", 1, cleanup_policy="compact").topic_id, 0)
    system.produce({key: [(b"%d" % number, b"v") for number in range(40)]})
    damage("UPDATE extents SET unique_keys = true")
    assert difference_keys(system, deep=True) == []
    system.produce({key: [(b"%d" % (number % 37), b"v") for number in range(40)]})
    damage("UPDATE extents SET unique_keys = true")
    damage("UPDATE partitions SET first_dirty_offset = 80, dirty_bytes = 0, dirty_since_ms = NULL")
    for most in (1 << 20, 7):
        monkeypatch.setattr(unique_keys, "MAX_DIGESTS", most)
        (found,) = run_fsck(system, deep=True).differences
        assert (found.kind, found.topic, found.partition) == (DifferenceKind.UNIQUE_KEYS, "keyed", 0)
        assert found.found == "3 records with a key that another one has"
    report = fsck(system.catalog, system.store, system.clock, deep=True, repair=True)
    assert [each.repaired for each in report.differences] == [True]
    assert difference_keys(system, deep=True) == []
    flags = [each.unique_keys for each in system.catalog.extents.from_offset(key.topic_id, 0, 0)]
    assert flags == [True, False]
    (size,) = system.catalog.planning.sizes_of([key])
    assert size.exactness is Exactness.DEDUP_INCOMPLETE


def test_an_orphan_is_a_difference_once_it_can_no_longer_be_committed(populated: System) -> None:
    key = PartitionId(populated.catalog.topics.get("plain").topic_id, 0)
    commit = populated.upload({key: [(b"a", b"1")]})
    report = run_fsck(populated)
    assert (report.differences, report.pending["unpublished_objects"]) == ((), 1)
    populated.catalog.sessions.end(populated.session_id)
    report = run_fsck(populated)
    assert (report.differences, report.pending["orphans_objects"]) == ((), 1)
    populated.clock.advance(61)
    (difference,) = run_fsck(populated).differences
    assert (difference.kind, difference.object_name) == (DifferenceKind.ORPHAN, commit.object_name)


def test_outputs_of_a_failed_job_wait_as_long_as_garbage_collection_keeps_them(populated: System) -> None:
    """While a session is unsettled, the publication of an ended job may have been lost."""
    plan_and_submit(populated.catalog, populated.clock, populated.ids, PlannerSettings())
    (job,) = populated.catalog.jobs.claim("one that fails", 1)
    written = len(populated.write_outputs(job).files)
    populated.catalog.jobs.cancel(job.spec.job_id, "a test")
    epoch = populated.catalog.incarnations.declare_restore("a test").epoch
    populated.clock.advance(100_000)
    collect_garbage(populated.catalog, populated.store, populated.clock, MaintenanceSettings())
    report = run_fsck(populated)
    assert (report.differences, report.pending["unsettled_objects"]) == ((), written)
    populated.catalog.lost_commits.report([populated.session_id], [], epoch)
    populated.catalog.lost_commits.settle([populated.session_id], epoch)
    assert {each.kind for each in run_fsck(populated).differences} == {DifferenceKind.ORPHAN}
    populated.clock.advance(100_000)
    collect_garbage(populated.catalog, populated.store, populated.clock, MaintenanceSettings())
    assert run_fsck(populated).differences == ()


def test_an_object_of_an_unknown_session_may_be_acknowledged(populated: System) -> None:
    """A restored catalog does not know later sessions. Only outputs of unknown jobs may go."""
    of_session = ingestion_name(UUID(int=1), UUID(int=2))
    of_job = compacted_name(UUID(int=1), UUID(int=2), UUID(int=3))
    for name in (of_session, of_job):
        populated.put(name, [b"x"])
    remedies = {each.object_name: each.remedy for each in run_fsck(populated).differences}
    assert set(remedies) == {of_session, of_job}
    assert "do not delete it" in remedies[of_session]
    assert "`siltstone fsck --readopt`" in remedies[of_session]
    assert "by hand" in remedies[of_job]


def test_foreign_names_are_only_counted(populated: System) -> None:
    populated.put("v1/notes.txt", [b"x"])
    populated.put("elsewhere/notes.txt", [b"x"])
    report = run_fsck(populated)
    assert (report.differences, report.pending["foreign_objects"]) == ((), 1)


def test_a_report_has_a_bounded_number_of_differences_and_counts_the_rest(
    populated: System, damage: Callable[[str], None]
) -> None:
    damage("DELETE FROM extents WHERE base_offset = 8")
    report = fsck(populated.catalog, populated.store, populated.clock, max_differences=2)
    assert (len(report.differences), report.differences_total) == (2, 7)


def test_extents_below_the_log_start_are_not_a_difference(populated: System) -> None:
    topic = populated.catalog.topics.get("plain")
    advance_log_start(populated.catalog.retention, topic.topic_id, 0, 9)
    assert difference_keys(populated, deep=True) == []
    populated.catalog.retention.remove_expired(topic.topic_id, 0)
    assert difference_keys(populated, deep=True) == []


def test_a_commit_between_two_queries_is_not_a_difference(
    populated: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append happens while extents are read, and an object is committed after the store was listed."""
    key = PartitionId(populated.catalog.topics.get("plain").topic_id, 0)
    extents_of, store_list = populated.catalog.planning.extents_of, populated.store.list
    disturbed: set[PartitionId] = set()
    hidden: list[str] = []

    def append_meanwhile(partition: PartitionId, offset: int, limit: int) -> list[Extent]:
        found = extents_of(partition, offset, limit)
        if partition not in disturbed:
            disturbed.add(partition)
            populated.produce({partition: [(b"a", b"late")]})
        return found

    def list_without_late_object(prefix: str, *, purpose: Purpose) -> Iterator[ObjectInfo]:
        late = populated.produce({key: [(b"a", b"late")]}).object_name if prefix == "v1/" else None
        hidden.extend([late] if late else [])
        return (info for info in store_list(prefix, purpose=purpose) if info.name != late)

    monkeypatch.setattr(populated.catalog.planning, "extents_of", append_meanwhile)
    monkeypatch.setattr(populated.store, "list", list_without_late_object)
    report = run_fsck(populated)
    assert (report.differences, len(disturbed), len(hidden)) == ((), 3, 1)
    assert "partitions_too_busy" not in report.checked


def test_a_partition_that_keeps_changing_is_counted_as_busy(
    populated: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    extents_of = populated.catalog.planning.extents_of

    def append_meanwhile(partition: PartitionId, offset: int, limit: int) -> list[Extent]:
        found = extents_of(partition, offset, limit)
        if partition.partition == 1:
            populated.produce({partition: [(b"a", b"late")]})
        return found if offset < 12 else []

    monkeypatch.setattr(populated.catalog.planning, "extents_of", append_meanwhile)
    report = run_fsck(populated)
    assert (report.differences, report.checked["partitions_too_busy"]) == ((), 1)


def test_garbage_collection_during_a_check_causes_no_difference(
    populated: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It deletes objects and rows between the page of the catalog and that of the store."""
    populated.clock.advance(61)
    collect = partial(
        collect_garbage, populated.catalog, populated.store, populated.clock, MaintenanceSettings()
    )
    store_list = populated.store.list

    def collect_before_listing(prefix: str, *, purpose: Purpose) -> Iterator[ObjectInfo]:
        if purpose is Purpose.FSCK:
            collect()
        return store_list(prefix, purpose=purpose)

    monkeypatch.setattr(populated.store, "list", collect_before_listing)
    report = run_fsck(populated)
    assert (report.differences, dict(report.pending)) == ((), {})


def test_repair_corrects_rows_that_follow_from_the_extents(
    populated: System, damage: Callable[[str], None]
) -> None:
    """Totals, counts, deaths and stale claims are corrected; compaction works afterwards."""
    damage("UPDATE partitions SET live_bytes = live_bytes + 7, dirty_since_ms = 1 WHERE partition = 1")
    damage(
        "UPDATE extents SET job_id = gen_random_uuid() WHERE file_id IN "
        "(SELECT file_id FROM files WHERE kind = 'ingestion' AND dead_ms IS NULL LIMIT 1)"
    )
    damage("UPDATE files SET live_extents = live_extents + 1, live_bytes = 0 WHERE kind = 'compacted'")
    before = {kind for kind, _, _ in difference_keys(populated)}
    assert before == {DifferenceKind.SUMS, DifferenceKind.FILE_COUNTS}
    report = fsck(populated.catalog, populated.store, populated.clock, repair=True)
    assert report.repaired_total == report.differences_total > 2
    assert all(each.repaired for each in report.differences)
    assert difference_keys(populated) == []
    plan_and_submit(populated.catalog, populated.clock, populated.ids, PlannerSettings())
    assert populated.run_jobs() == 1
    assert difference_keys(populated) == []


def test_repair_revives_a_dead_file_with_live_extents(
    populated: System, damage: Callable[[str], None]
) -> None:
    damage("UPDATE files SET dead_ms = 1, live_extents = 0, claimed_extents = 0 WHERE dead_ms IS NULL")
    fsck(populated.catalog, populated.store, populated.clock, repair=True)
    assert difference_keys(populated) == []


def test_repair_does_not_change_bounds(populated: System, damage: Callable[[str], None]) -> None:
    damage("UPDATE partitions SET log_end_offset = log_end_offset + 1, high_watermark = high_watermark + 1")
    before = difference_keys(populated)
    report = fsck(populated.catalog, populated.store, populated.clock, repair=True)
    assert report.repaired_total == 0
    assert difference_keys(populated) == before != []


def test_repair_changes_nothing_if_an_extent_is_missing(
    populated: System, damage: Callable[[str], None]
) -> None:
    """A file whose last extent was lost would seem dead, and be deleted."""
    damage("DELETE FROM extents WHERE base_offset = 8")
    before = difference_keys(populated)
    report = fsck(populated.catalog, populated.store, populated.clock, repair=True)
    assert report.repaired_total == 0
    assert difference_keys(populated) == before
