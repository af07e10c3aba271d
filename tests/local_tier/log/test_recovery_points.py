"""Logs whose recovery point is lost, or belongs to another log."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from local_tier.files.file_names import RECOVERY_POINT_CHECKPOINT
from tests.local_tier.batches import batch
from tests.local_tier.crash.crash_check import contents
from tests.local_tier.crash.unsynced import UnsyncedFileSystem
from tests.local_tier.manager.managers import SMALL, Machine, crash, delete_log, name_of, orders
from tests.local_tier.steps import NoFaults, SteppedFileSystem

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.log.unified_log import UnifiedLog

COMPACTED = replace(SMALL, compact=True, delete=False, min_cleanable_dirty_ratio=0.0)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine((tmp_path / "a",))


def fill(log: UnifiedLog, count: int) -> None:
    """Append records, every second one with the same key."""
    for number in range(count):
        log.append_as_leader(batch(1 if number % 2 else number, size=300), 0)
    log.update_high_watermark(log.log_end_offset)


def offsets(log: UnifiedLog) -> list[int]:
    return [offset for offset, _ in contents(log)]


@pytest.mark.parametrize("damage", ["gone", "unreadable", "another log's"])
def test_a_formerly_compacted_log_survives_the_loss_of_its_recovery_point(
    machine: Machine, damage: str
) -> None:
    """Offsets that were cleaned do not count as lost, now or later."""
    manager = machine.start()
    log = orders(manager, config=COMPACTED)
    fill(log, 12)
    (cleaner,) = manager.cleaners.values()
    assert cleaner.clean_once(cleaner.new_cleaner())
    expected = offsets(log)
    bases = [segment.base_offset for segment in log.segments]
    ends = [segment.next_offset() for segment in log.segments]
    assert any(end < base for end, base in zip(ends, bases[1:], strict=False)), "no gap between segments"
    manager.periodic_tasks.checkpoint_recovery_points()
    crash(manager)
    checkpoint = machine.directories[0] / RECOVERY_POINT_CHECKPOINT
    match damage:
        case "gone":
            checkpoint.unlink()
        case "unreadable":
            checkpoint.write_text("nonsense")
        case _:
            checkpoint.write_text("0\n1\nothers 0 5\n")
    for _ in range(2):
        manager = machine.start()  # under cleanup.policy=delete
        found = manager.get(name_of(0))
        assert found is not None
        assert offsets(found) == expected
        manager.periodic_tasks.checkpoint_recovery_points()
        crash(manager)


def test_a_new_log_ignores_the_recovery_point_of_an_older_one(machine: Machine) -> None:
    """A topic of the same name starts at offset 0, where a torn batch must be detected."""
    manager = machine.start()
    fill(orders(manager), 3)
    orders(manager).flush()
    manager.periodic_tasks.checkpoint_recovery_points()
    delete_log(manager, name_of(0))
    log = manager.get_or_create("orders", UUID(int=77), 0, SMALL)
    fill(log, 9)
    torn = log.segments[0].path
    crash(manager)
    data = bytearray(torn.read_bytes())
    data[-1] ^= 1
    torn.write_bytes(data)
    manager = machine.start()
    found = manager.get(name_of(0))
    assert found is not None
    assert offsets(found) == [0]
    crash(manager)


def test_a_new_log_ignores_the_recovery_point_that_a_crash_has_left(machine: Machine) -> None:
    """The crash came between the removal of a log and that of its entry. A new log does not see the entry."""
    machine.start().close()
    checkpoint = machine.directories[0] / RECOVERY_POINT_CHECKPOINT
    checkpoint.write_text("0\n1\norders 0 9\n")
    manager = machine.start()
    orders(manager)
    assert checkpoint.read_text() == "0\n0\n"
    crash(manager)


def test_new_and_restarted_logs_do_not_write_the_recovery_points_of_all_logs(machine: Machine) -> None:
    """The tail cache creates a log for each partition, and restarts it after commits of other agents."""
    faults = NoFaults()
    machine.files = SteppedFileSystem(UnsyncedFileSystem(), faults)
    manager = machine.start()
    orders(manager, 10)
    before = faults.steps["write recovery-point-offset-checkpoint.tmp"]
    for partition in range(10):
        fill(orders(manager, partition), 3)
        manager.truncate_fully(name_of(partition), 100)
        orders(manager, partition).flush()
        manager.truncate_fully(name_of(partition), 200)
    assert faults.steps["write recovery-point-offset-checkpoint.tmp"] == before
    manager.periodic_tasks.checkpoint_recovery_points()
    manager.truncate_fully(name_of(4), 50)
    crash(manager)
    points = (machine.directories[0] / RECOVERY_POINT_CHECKPOINT).read_text().splitlines()
    assert "orders 4 50" in points
    manager = machine.start()
    assert {log.log_start_offset for log in manager.logs()} == {0, 50, 200}
    crash(manager)


def test_appends_after_a_truncation_within_a_batch_survive_a_crash(machine: Machine) -> None:
    """The whole batch is dropped, and the next segment starts after a gap."""
    manager = machine.start()
    log = orders(manager)
    log.append_as_leader(batch(0, 4, size=100), 0)
    log.append_as_leader(batch(0, 3, size=10), 0)
    manager.truncate_to(name_of(0), 6)
    log.append_as_leader(batch(0, size=600), 0)
    fill(log, 12)
    bases, ends = [each.base_offset for each in log.segments], [each.next_offset() for each in log.segments]
    assert (ends[0], bases[1]) == (4, 6), "no gap between segments"
    before = contents(log)
    crash(manager)

    again = machine.start()

    assert contents(orders(again)) == before
    again.close()
