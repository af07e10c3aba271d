"""fsck finds each kind of damage, and nothing where there is none."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest

from catalog.model import PartitionId
from maintenance.fsck import DifferenceKind, FsckReport, fsck
from maintenance.garbage_collection import GarbageSettings, collect_garbage
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from object_store.errors import ForeignStoreError
from object_store.names import IDENTITY_NAME, ingestion_name
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings

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
    """Changes rows behind the catalog's back, its constraints left out."""

    def run(statement: str) -> None:
        with psycopg.connect(catalog_url, autocommit=True) as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute(statement.encode())

    return run


@pytest.fixture
def lived_in(system: System) -> System:
    """Two topics; compacted once, with dead files that wait, and news in ingestion files."""
    keyed = system.topic("keyed", 2, cleanup_policy="compact")
    plain = system.topic("plain", 1)
    keys = [PartitionId(keyed.topic_id, 0), PartitionId(keyed.topic_id, 1), PartitionId(plain.topic_id, 0)]
    for number in range(6):
        system.produce({key: [(b"a", b"%d" % number), (b"%d" % number, b"v" * 50)] for key in keys})
        if number == 2:
            plan_and_submit(system.catalog, system.clock, system.ids, PlannerSettings())
            system.run_jobs()
    return system


def check(system: System, *, deep: bool = False) -> FsckReport:
    return fsck(system.catalog, system.store, system.clock, deep=deep)


def found(system: System, *, deep: bool = False) -> list[tuple[DifferenceKind, str | None, int | None]]:
    differences = check(system, deep=deep).differences
    for each in differences:
        assert each.expected
        assert each.found
        assert each.remedy
    return [(each.kind, each.topic, each.partition) for each in differences]


def live_files(system: System, kind: str) -> list[CatalogFile]:
    files = system.catalog.garbage.known_files("")
    return [file for file in files if file.dead_ms is None and file.kind == kind]


def test_an_empty_system_is_well(system: System) -> None:
    report = check(system, deep=True)
    assert (report.differences, report.differences_total, dict(report.pending)) == ((), 0, {})


def test_a_system_that_was_lived_in_is_well_and_says_what_was_looked_at(lived_in: System) -> None:
    report = check(lived_in, deep=True)
    assert report.as_dict()["differences"] == []
    assert report.checked["topics"] == 2
    assert report.checked["partitions"] == 3
    assert report.checked["extents"] == 12  # one compacted and three of ingestion files, each
    assert report.checked["files"] == 8
    assert report.checked["files_read"] == 5
    assert report.checked["records_read"] == 3 * 6 + 2 * 4 + 6
    assert report.pending["dead_files_objects"] == 3


def test_it_changes_nothing(lived_in: System) -> None:
    before = [
        (info.name, info.size, info.modified_ms) for info in lived_in.store.list("", purpose=Purpose.FSCK)
    ]
    gets = lived_in.store.counts.snapshot()
    check(lived_in, deep=True)
    after = [
        (info.name, info.size, info.modified_ms) for info in lived_in.store.list("", purpose=Purpose.FSCK)
    ]
    assert before == after
    asked = (lived_in.store.counts.snapshot() - gets).as_dict()
    assert list(asked) == ["fsck"]
    assert asked["fsck"]["get_requests"] == 5
    assert asked["fsck"]["put_requests"] == asked["fsck"]["delete_requests"] == 0


def test_its_own_store_costs_one_more_get(lived_in: System) -> None:
    verify_binding(lived_in.store, lived_in.catalog.store_binding, lived_in.ids)
    before = lived_in.store.counts.snapshot()
    assert check(lived_in).differences == ()
    asked = (lived_in.store.counts.snapshot() - before).as_dict()["check"]
    assert (asked["get_requests"], asked["list_requests"], asked["put_requests"]) == (1, 0, 0)


def test_another_store_is_refused_and_nobody_told_to_delete_records(
    lived_in: System, other_store: LocalStore
) -> None:
    verify_binding(lived_in.store, lived_in.catalog.store_binding, lived_in.ids)
    with pytest.raises(ForeignStoreError, match=r"objects are in file:.*is another object store"):
        fsck(lived_in.catalog, other_store, lived_in.clock)


def test_a_store_that_was_emptied_says_so_first(lived_in: System) -> None:
    verify_binding(lived_in.store, lived_in.catalog.store_binding, lived_in.ids)
    everything = [info.name for info in lived_in.store.list("", purpose=Purpose.FSCK)]
    lived_in.store.delete(everything, purpose=Purpose.FSCK)
    first, *others = check(lived_in).differences
    assert (first.kind, first.object_name) == (DifferenceKind.STORE_IDENTITY, IDENTITY_NAME)
    assert "emptied" in first.found
    assert {each.kind for each in others} == {DifferenceKind.MISSING_OBJECT}


@pytest.mark.parametrize("kind", ["ingestion", "compacted"])
def test_a_missing_object(lived_in: System, kind: str) -> None:
    name = live_files(lived_in, kind)[0].object_name
    lived_in.path_of(name).unlink()
    (difference,) = check(lived_in, deep=True).differences
    assert (difference.kind, difference.object_name) == (DifferenceKind.MISSING_OBJECT, name)


@pytest.mark.parametrize("kind", ["ingestion", "compacted"])
def test_a_truncated_object(lived_in: System, kind: str) -> None:
    file = live_files(lived_in, kind)[0]
    os.truncate(lived_in.path_of(file.object_name), file.size - 1)
    (difference,) = check(lived_in).differences
    assert difference.kind is DifferenceKind.OBJECT_SIZE
    assert (difference.expected, difference.found) == (f"{file.size} bytes", f"{file.size - 1} bytes")
    assert {kind for kind, _, _ in found(lived_in, deep=True)} == {
        DifferenceKind.OBJECT_SIZE,
        DifferenceKind.CORRUPT,
    }


@pytest.mark.parametrize("kind", ["ingestion", "compacted"])
@pytest.mark.parametrize("place", [0, 9, 100, 300, -1, -70])
def test_a_flipped_bit_anywhere(lived_in: System, kind: str, place: int) -> None:
    path = lived_in.path_of(live_files(lived_in, kind)[0].object_name)
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)
    assert found(lived_in) == []
    assert [kind for kind, _, _ in found(lived_in, deep=True)] == [DifferenceKind.CORRUPT]


def test_one_file_in_the_place_of_another(lived_in: System) -> None:
    one, two = (lived_in.path_of(file.object_name) for file in live_files(lived_in, "ingestion")[:2])
    assert one.stat().st_size == two.stat().st_size
    two.write_bytes(one.read_bytes())
    assert found(lived_in) == []
    assert DifferenceKind.CONTENT in {kind for kind, _, _ in found(lived_in, deep=True)}


def test_a_gap(lived_in: System, damage: Callable[[str], None]) -> None:
    damage("DELETE FROM extents WHERE base_offset = 8 AND partition = 1")
    assert found(lived_in) == [
        (DifferenceKind.COVERAGE, "keyed", 1),
        (DifferenceKind.SUMS, "keyed", 1),
        (DifferenceKind.FILE_COUNTS, None, None),
    ]


@pytest.mark.parametrize("base_offset", [0, 10])
def test_a_log_without_its_beginning_or_its_end(
    lived_in: System, damage: Callable[[str], None], base_offset: int
) -> None:
    damage(f"DELETE FROM extents WHERE base_offset = {base_offset} AND partition = 1")
    assert found(lived_in) == [
        (DifferenceKind.COVERAGE, "keyed", 1),
        (DifferenceKind.SUMS, "keyed", 1),
        (DifferenceKind.FILE_COUNTS, None, None),
    ]


def test_sums_that_do_not_add_up(lived_in: System, damage: Callable[[str], None]) -> None:
    damage("UPDATE partitions SET live_bytes = live_bytes + 1 WHERE partition = 1")
    assert found(lived_in) == [(DifferenceKind.SUMS, "keyed", 1)]


@pytest.mark.parametrize("page", [1, 2, 3])
def test_what_lies_between_two_pages_is_checked_too(
    lived_in: System, damage: Callable[[str], None], page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maintenance.fsck.partitions.EXTENTS_AT_ONCE", page)
    topic = lived_in.catalog.topics.get("plain")
    for start in (1, 6, 9, 12):
        lived_in.catalog.retention.advance_log_start(topic.topic_id, 0, start)
        assert found(lived_in, deep=True) == []
    damage("UPDATE extents SET last_offset = last_offset + 1 WHERE base_offset IN (6, 8) AND partition = 1")
    assert found(lived_in) == [(DifferenceKind.COVERAGE, "keyed", 1)] * 2
    damage("DELETE FROM extents WHERE base_offset IN (6, 8) AND partition = 1")
    assert found(lived_in) == [
        (DifferenceKind.COVERAGE, "keyed", 1),
        (DifferenceKind.SUMS, "keyed", 1),
        (DifferenceKind.FILE_COUNTS, None, None),
        (DifferenceKind.FILE_COUNTS, None, None),
    ]


def test_an_overlap(lived_in: System, damage: Callable[[str], None]) -> None:
    damage("UPDATE extents SET last_offset = last_offset + 1 WHERE base_offset = 8 AND partition = 1")
    assert found(lived_in) == [(DifferenceKind.COVERAGE, "keyed", 1)]


def test_bounds_out_of_order(lived_in: System, damage: Callable[[str], None]) -> None:
    damage("ALTER TABLE partitions DROP CONSTRAINT bounds_ordered")
    damage("UPDATE partitions SET last_stable_offset = high_watermark + 1 WHERE partition = 1")
    assert found(lived_in) == [(DifferenceKind.BOUNDS, "keyed", 1)]


def test_a_count_that_cannot_be(lived_in: System, damage: Callable[[str], None]) -> None:
    damage("ALTER TABLE extents DROP CONSTRAINT count_fits")
    damage("UPDATE extents SET record_count = 3 WHERE base_offset = 8 AND partition = 1")
    assert found(lived_in) == [(DifferenceKind.RECORD_COUNT, "keyed", 1)]


@pytest.mark.parametrize("base_offset", [0, 8])
def test_a_count_that_is_not_that_of_the_bytes(
    lived_in: System, damage: Callable[[str], None], base_offset: int
) -> None:
    damage(f"UPDATE extents SET record_count = 1 WHERE base_offset = {base_offset} AND partition = 1")
    assert found(lived_in) == []
    assert found(lived_in, deep=True) == [(DifferenceKind.RECORD_COUNT, "keyed", 1)]


def test_places_that_are_not_where_the_bytes_are(lived_in: System, damage: Callable[[str], None]) -> None:
    damage("UPDATE extents SET position = position + 1 WHERE base_offset = 8 AND partition = 1")
    assert found(lived_in, deep=True) == [(DifferenceKind.CONTENT, "keyed", 1)]


def test_offsets_that_are_not_those_of_the_bytes(lived_in: System, damage: Callable[[str], None]) -> None:
    """An extent that claims two offsets more than its bytes have: those two are neither records nor holes."""
    damage("UPDATE extents SET offset_shift = offset_shift - 1 WHERE base_offset = 8 AND partition = 1")
    kinds = {kind for kind, _, _ in found(lived_in, deep=True)}
    assert kinds <= {DifferenceKind.CONTENT, DifferenceKind.RECORD_COUNT}
    assert kinds


def test_timestamps_beyond_what_the_extent_says(lived_in: System, damage: Callable[[str], None]) -> None:
    damage("UPDATE extents SET max_timestamp = 5 WHERE base_offset = 8 AND partition = 1")
    assert found(lived_in, deep=True) == [(DifferenceKind.CONTENT, "keyed", 1)]


def test_an_extent_whose_file_has_no_such_section(lived_in: System, damage: Callable[[str], None]) -> None:
    compacted = live_files(lived_in, "compacted")
    plain = lived_in.catalog.topics.get("plain").topic_id
    keyed_file = next(
        extent.file_id
        for extent in lived_in.catalog.extents.from_offset(
            lived_in.catalog.topics.get("keyed").topic_id, 0, 0
        )
    )
    assert keyed_file in {file.file_id for file in compacted}
    damage(f"UPDATE extents SET file_id = '{keyed_file}' WHERE topic_id = '{plain}' AND base_offset = 0")
    assert (DifferenceKind.CONTENT, "plain", 0) in found(lived_in, deep=True)


def test_an_orphan_is_a_difference_once_nobody_can_commit_it(lived_in: System) -> None:
    key = PartitionId(lived_in.catalog.topics.get("plain").topic_id, 0)
    commit = lived_in.upload({key: [(b"a", b"1")]})
    report = check(lived_in)
    assert (report.differences, report.pending["unpublished_objects"]) == ((), 1)
    lived_in.catalog.sessions.end(lived_in.session_id)
    report = check(lived_in)
    assert (report.differences, report.pending["orphans_objects"]) == ((), 1)
    lived_in.clock.advance(61)
    (difference,) = check(lived_in).differences
    assert (difference.kind, difference.object_name) == (DifferenceKind.ORPHAN, commit.object_name)


def test_an_object_of_a_session_that_nobody_knows_is_an_orphan_of_another_kind(lived_in: System) -> None:
    lived_in.put(ingestion_name(UUID(int=1), UUID(int=2)), [b"x"])
    (difference,) = check(lived_in).differences
    assert difference.kind is DifferenceKind.ORPHAN
    assert "this catalog belongs to this object store" in difference.remedy


def test_names_that_are_not_ours_only_count(lived_in: System) -> None:
    lived_in.put("v1/notes.txt", [b"x"])
    lived_in.put("elsewhere/notes.txt", [b"x"])
    report = check(lived_in)
    assert (report.differences, report.pending["foreign_objects"]) == ((), 1)


def test_differences_are_kept_up_to_a_bound_and_counted_beyond(
    lived_in: System, damage: Callable[[str], None]
) -> None:
    damage("DELETE FROM extents WHERE base_offset = 8")
    report = fsck(lived_in.catalog, lived_in.store, lived_in.clock, max_differences=2)
    assert (len(report.differences), report.differences_total) == (2, 7)


def test_extents_below_the_log_start_are_no_difference(lived_in: System) -> None:
    topic = lived_in.catalog.topics.get("plain")
    lived_in.catalog.retention.advance_log_start(topic.topic_id, 0, 9)
    assert found(lived_in, deep=True) == []
    lived_in.catalog.retention.remove_expired(topic.topic_id, 0)
    assert found(lived_in, deep=True) == []


def test_a_commit_between_two_questions_is_no_difference(
    lived_in: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look is disturbed once: by an append while extents are read, by an object listed too early."""
    key = PartitionId(lived_in.catalog.topics.get("plain").topic_id, 0)
    extents_of, store_list = lived_in.catalog.planning.extents_of, lived_in.store.list
    disturbed: set[PartitionId] = set()
    hidden: list[str] = []

    def append_meanwhile(partition: PartitionId, offset: int, limit: int) -> list[Extent]:
        found = extents_of(partition, offset, limit)
        if partition not in disturbed:
            disturbed.add(partition)
            lived_in.produce({partition: [(b"a", b"late")]})
        return found

    def listed_too_early(prefix: str, *, purpose: Purpose) -> Iterator[ObjectInfo]:
        late = lived_in.produce({key: [(b"a", b"late")]}).object_name if prefix == "v1/" else None
        hidden.extend([late] if late else [])
        return (info for info in store_list(prefix, purpose=purpose) if info.name != late)

    monkeypatch.setattr(lived_in.catalog.planning, "extents_of", append_meanwhile)
    monkeypatch.setattr(lived_in.store, "list", listed_too_early)
    report = check(lived_in)
    assert (report.differences, len(disturbed), len(hidden)) == ((), 3, 1)
    assert "partitions_too_busy" not in report.checked


def test_a_partition_that_never_stands_still_is_counted_and_not_misjudged(
    lived_in: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    extents_of = lived_in.catalog.planning.extents_of

    def append_meanwhile(partition: PartitionId, offset: int, limit: int) -> list[Extent]:
        found = extents_of(partition, offset, limit)
        if partition.partition == 1:
            lived_in.produce({partition: [(b"a", b"late")]})
        return found if offset < 12 else []

    monkeypatch.setattr(lived_in.catalog.planning, "extents_of", append_meanwhile)
    report = check(lived_in)
    assert (report.differences, report.checked["partitions_too_busy"]) == ((), 1)


def test_what_goes_while_it_is_looked_at_is_no_difference(
    lived_in: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage collection deletes objects and rows between the catalog's page and the store's."""
    lived_in.clock.advance(61)
    collect = partial(collect_garbage, lived_in.catalog, lived_in.store, lived_in.clock, GarbageSettings())
    store_list = lived_in.store.list

    def collected_before(prefix: str, *, purpose: Purpose) -> Iterator[ObjectInfo]:
        if purpose is Purpose.FSCK:
            collect()
        return store_list(prefix, purpose=purpose)

    monkeypatch.setattr(lived_in.store, "list", collected_before)
    report = check(lived_in)
    assert (report.differences, dict(report.pending)) == ((), {})


def test_repair_sets_right_what_follows_from_the_extents(
    lived_in: System, damage: Callable[[str], None]
) -> None:
    """Sums, counts, death and stale claims; afterwards nothing is different, and compaction goes on."""
    damage("UPDATE partitions SET live_bytes = live_bytes + 7, dirty_since_ms = 1 WHERE partition = 1")
    damage(
        "UPDATE extents SET job_id = gen_random_uuid() WHERE file_id IN "
        "(SELECT file_id FROM files WHERE kind = 'ingestion' AND dead_ms IS NULL LIMIT 1)"
    )
    damage("UPDATE files SET live_extents = live_extents + 1, live_bytes = 0 WHERE kind = 'compacted'")
    before = {kind for kind, _, _ in found(lived_in)}
    assert before == {DifferenceKind.SUMS, DifferenceKind.FILE_COUNTS}
    report = fsck(lived_in.catalog, lived_in.store, lived_in.clock, repair=True)
    assert report.repaired_total == report.differences_total > 2
    assert all(each.repaired for each in report.differences)
    assert found(lived_in) == []
    plan_and_submit(lived_in.catalog, lived_in.clock, lived_in.ids, PlannerSettings())
    assert lived_in.run_jobs() == 1
    assert found(lived_in) == []


def test_a_file_that_passes_for_dead_while_extents_need_it_is_brought_back(
    lived_in: System, damage: Callable[[str], None]
) -> None:
    damage("UPDATE files SET dead_ms = 1, live_extents = 0, claimed_extents = 0 WHERE dead_ms IS NULL")
    fsck(lived_in.catalog, lived_in.store, lived_in.clock, repair=True)
    assert found(lived_in) == []


def test_repair_leaves_alone_what_is_not_certain(lived_in: System, damage: Callable[[str], None]) -> None:
    damage("UPDATE partitions SET log_end_offset = log_end_offset + 1, high_watermark = high_watermark + 1")
    before = found(lived_in)
    report = fsck(lived_in.catalog, lived_in.store, lived_in.clock, repair=True)
    assert report.repaired_total == 0
    assert found(lived_in) == before != []


def test_repair_does_nothing_where_an_extent_is_missing(
    lived_in: System, damage: Callable[[str], None]
) -> None:
    """A file of which a lost extent was the last would pass for dead, and be deleted."""
    damage("DELETE FROM extents WHERE base_offset = 8")
    before = found(lived_in)
    report = fsck(lived_in.catalog, lived_in.store, lived_in.clock, repair=True)
    assert report.repaired_total == 0
    assert found(lived_in) == before
