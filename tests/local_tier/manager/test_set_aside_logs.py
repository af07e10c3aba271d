"""Logs that wait to be opened again: which one is opened, and when it may be."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from typing_extensions import override

from local_tier.errors import LogDirectoryOfflineError
from local_tier.files.file_names import SET_ASIDE
from local_tier.manager import log_reopening
from local_tier.manager.log_checkpoints import LogCheckpoints
from local_tier.manager.log_copy import LogCopy
from local_tier.manager.set_aside_logs import Disposal, SetAsideLog
from tests.local_tier.batches import batch
from tests.local_tier.crash.test_set_aside import all_wait
from tests.local_tier.crash.unsynced import UnsyncedFileSystem
from tests.local_tier.log.test_log_loader import legacy
from tests.local_tier.manager.managers import ORDERS_ID, SMALL, Machine, crash, fill, name_of, orders
from tests.local_tier.steps import NoFaults, SteppedFileSystem, Switch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_directories import LogDirectory
    from local_tier.manager.log_manager import LogManager


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine((tmp_path / "a", tmp_path / "b"))


def states(machine: Machine) -> list[str]:
    """Return the states of the partition directories of both disks."""
    return sorted(name.rpartition("-")[2] for index in (0, 1) for name in machine.names(index))


def set_aside_and_reopen(manager: LogManager) -> UnifiedLog:
    """Return a log with three records that is served with its mark."""
    fill(orders(manager), 3)
    assert manager.disposal.set_aside(orders(manager), Disposal.WAIT)
    (found,) = manager.reopening.set_aside_logs()
    log = manager.reopening.reopen(name_of(0), found, SMALL)
    assert log is not None
    return log


def start_deleted(machine: Machine) -> LogManager:
    """Start while no topic exists."""
    machine.configs = {"orders": None}
    manager = machine.manager()
    manager.start(machine.config_of, all_wait, clean=False)
    return manager


def test_a_log_is_opened_in_the_recorded_directory(machine: Machine) -> None:
    """The other one may be an older copy that a crash has left. It stays as a stray."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 3)
    manager.close()
    other = next(path for path in machine.directories if path != log.directory.parent)
    copy = other / "orders-0"
    copy.mkdir()
    for each in log.directory.iterdir():
        (copy / each.name).write_bytes(each.read_bytes())
    manager = start_deleted(machine)
    assert states(machine) == ["stray", "stray"]
    assert manager.reopening.find(ORDERS_ID, 0, None) is None, "nothing says which one"
    recorded = manager.directory_id(other)
    found = manager.reopening.find(ORDERS_ID, 0, recorded)
    assert found is not None
    assert found.path.parent == other
    reopened = manager.reopening.reopen(name_of(0), found, SMALL)
    assert reopened is not None
    assert reopened.high_watermark == 3
    assert (manager.metrics().stray_logs, manager.metrics().logs_set_aside) == (1, 0)
    manager.disposal.set_aside(reopened, Disposal.WAIT)
    assert manager.reopening.find(ORDERS_ID, 0, None) is not None
    manager.close()


def test_a_log_elsewhere_is_opened_only_if_the_recorded_directory_is_open(machine: Machine) -> None:
    """That directory may be on a disk that is away, and have a newer one."""
    manager = machine.start()
    log = orders(manager)
    manager.disposal.set_aside(log, Disposal.WAIT)
    manager.close()
    manager = machine.start()
    other = next(path for path in machine.directories if path != log.directory.parent)
    recorded = manager.directory_id(other)
    assert manager.reopening.find(ORDERS_ID, 0, UUID(int=7)) is None
    assert manager.reopening.find(ORDERS_ID, 0, None) is not None
    assert manager.reopening.find(ORDERS_ID, 0, recorded) is not None
    manager._failures.report(other, OSError("gone"))
    assert manager.reopening.find(ORDERS_ID, 0, recorded) is None
    manager.close()


def test_no_new_log_hides_one_that_waits(machine: Machine) -> None:
    """Its partition would start again at offset 0."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 3)
    manager.disposal.set_aside(log, Disposal.WAIT)
    with pytest.raises(LogDirectoryOfflineError, match="was set aside"):
        orders(manager)
    (found,) = manager.reopening.set_aside_logs()
    reopened = manager.reopening.reopen(name_of(0), found, SMALL)
    assert orders(manager) is reopened
    assert orders(manager).log_end_offset == 3
    manager.close()


class Move(NoFaults):
    """Ends the move of a log at the first file that setting it aside creates, if nothing prevents that."""

    def __init__(self, manager: LogManager) -> None:
        super().__init__()
        self._manager = manager

    @override
    def before(self, step: str) -> None:
        super().before(step)
        is_first = step == f"create {SET_ASIDE}.tmp" and self.steps[step] == 1
        if is_first and not self._manager._registry.creation_lock(name_of(0)).locked():
            self._manager.moves.replace_current_with_future_log(name_of(0))


def test_a_move_that_ends_meanwhile_does_not_fail_the_disk(tmp_path: Path) -> None:
    """It would rename the directory of the log, and take a missing file for a failure of the disk."""
    switch = Switch(NoFaults())
    files = SteppedFileSystem(UnsyncedFileSystem(), switch)
    machine = Machine((tmp_path / "a", tmp_path / "b"), files=files)
    manager = machine.start()
    log = orders(manager)
    fill(log, 3)
    target = next(path for path in machine.directories if path != log.directory.parent)
    manager.moves.create_future_log(name_of(0), target)
    switch.faults = Move(manager)
    assert manager.disposal.set_aside(log, Disposal.WAIT)
    assert manager.offline_directories == []
    assert states(machine) == ["delete", "stray"]
    (found,) = manager.reopening.set_aside_logs()
    assert found.path.parent != target
    manager.close()


def test_a_copy_that_waits_while_its_log_is_open_becomes_a_stray(machine: Machine) -> None:
    """A crash came after the log was opened again, and before the copy lost its mark."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 3)
    manager.close()
    other = next(path for path in machine.directories if path != log.directory.parent)
    shutil.copytree(log.directory, other / "orders-0")
    manager = start_deleted(machine)
    (path,) = [
        each.path for each in manager.reopening.set_aside_logs() if each.path.parent == log.directory.parent
    ]
    manager.close()
    path.rename(log.directory)
    machine.configs = {}
    manager = machine.start()
    (served,) = manager.logs()
    (copy,) = manager.reopening.set_aside_logs()
    assert copy.path.parent == other
    assert manager.reopening.reopen(name_of(0), copy, SMALL) is served
    assert (manager.metrics().stray_logs, manager.reopening.set_aside_logs()) == (1, [])
    assert not (copy.path / SET_ASIDE).exists()
    manager.close()


@pytest.mark.parametrize("is_set_aside", [False, True])
def test_the_copy_of_a_move_is_deleted_at_a_start_without_the_topic(
    machine: Machine, *, is_set_aside: bool
) -> None:
    """The log has everything, whether it was set aside before a crash or is now."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 10)
    target = next(path for path in machine.directories if path != log.directory.parent)
    copy = LogCopy(log, manager.moves.create_future_log(name_of(0), target))
    copy.write(copy.read())
    copy.future.flush(force_active=True)
    if is_set_aside:
        manager._registry.remove(name_of(0), future=True)
        copy.future.close_handles()
        manager.disposal.set_aside(log, Disposal.WAIT)
    manager.close()
    manager = start_deleted(machine)
    assert states(machine) == ["delete", "stray"]
    (found,) = manager.reopening.set_aside_logs()
    assert found.path.parent == log.directory.parent
    reopened = manager.reopening.reopen(name_of(0), found, SMALL)
    assert reopened is not None
    assert reopened.log_end_offset == 10
    manager.close()


def test_a_copy_without_its_log_is_a_stray(machine: Machine) -> None:
    manager = machine.start()
    log = orders(manager)
    target = next(path for path in machine.directories if path != log.directory.parent)
    manager.moves.create_future_log(name_of(0), target)
    manager.close()
    log.directory.rename(log.directory.parent / "away")
    manager = start_deleted(machine)
    assert (manager.metrics().stray_logs, manager.metrics().logs_set_aside) == (1, 0)
    manager.close()


def test_a_log_waits_while_another_topic_has_its_name(machine: Machine) -> None:
    manager = machine.start()
    manager.disposal.set_aside(orders(manager), Disposal.WAIT)
    newer = manager.get_or_create("orders", UUID(int=9), 0, SMALL)
    (found,) = manager.reopening.set_aside_logs()
    assert manager.reopening.reopen(name_of(0), found, SMALL) is None
    assert manager.get(name_of(0)) is newer
    manager.disposal.set_aside(newer, Disposal.STRAY)
    reopened = manager.reopening.reopen(name_of(0), found, SMALL)
    assert reopened is not None
    assert reopened.topic_id == ORDERS_ID
    assert manager.reopening.reopen(name_of(0), found, SMALL) is reopened
    manager.close()


def test_entries_of_an_older_log_of_the_name_do_not_hide_records(machine: Machine) -> None:
    """A crash has left them, and another one comes before the mark of the opened log is removed."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 3)
    manager.disposal.set_aside(log, Disposal.WAIT)
    (found,) = manager.reopening.set_aside_logs()
    path = found.path.parent
    directory = next(each for each in manager._directories.live if each.path == path)
    directory.log_start_offsets.write({name_of(0): 100})
    directory.recovery_points.write({name_of(0): 100})
    manager._log_checkpoints._written.clear()
    assert manager.reopening.reopen(name_of(0), found, SMALL) is not None
    log_starts, points = directory.log_start_offsets.read(), directory.recovery_points.read()
    assert (log_starts.get(name_of(0), 0), points.get(name_of(0), 0)) == (0, 0)
    manager.close()


def test_a_log_that_cannot_be_opened_again_is_offline(machine: Machine) -> None:
    """Its files stay, and the other logs are served."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 3)
    manager.disposal.set_aside(log, Disposal.WAIT)
    (found,) = manager.reopening.set_aside_logs()
    segment = found.path / "00000000000000000000.log"
    segment.write_bytes(legacy(b"k", b"v"))
    for _ in range(2):
        with pytest.raises(LogDirectoryOfflineError, match="could not be opened"):
            manager.reopening.reopen(name_of(0), found, SMALL)
    assert manager.metrics().offline_logs == 1
    assert manager.offline_directories == []
    assert orders(manager, 1).log_end_offset == 0
    manager.close()


def test_a_stray_that_was_opened_again_just_before_has_no_mark(machine: Machine) -> None:
    """Otherwise it would count as a log that waits, with the offsets of the time before."""
    manager = machine.start()
    fill(orders(manager), 3)
    manager.disposal.set_aside(orders(manager), Disposal.WAIT)
    (found,) = manager.reopening.set_aside_logs()
    reopened = manager.reopening.reopen(name_of(0), found, SMALL)
    assert reopened is not None
    assert manager.disposal.set_aside(reopened, Disposal.STRAY)
    manager.close()
    manager = machine.start()
    assert (manager.metrics().stray_logs, manager.reopening.set_aside_logs()) == (1, [])
    manager.close()


def remove_marks_during(manager: LogManager, work: Callable[[], object]) -> None:
    """Remove marks, with other work between the writes of the checkpoints and the removal of the files."""
    checkpoints, has_begun = manager._log_checkpoints, False

    def write(directory: LogDirectory) -> None:
        nonlocal has_begun
        LogCheckpoints.write_recovery_points(checkpoints, directory)
        if not has_begun:
            has_begun = True
            work()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "write_recovery_points", write)
        manager.marks.remove()
    assert has_begun


def test_a_log_that_becomes_a_stray_while_its_mark_is_removed_has_none(machine: Machine) -> None:
    """Otherwise it would count as a log that waits, with the offsets of the time before."""
    manager = machine.start()
    reopened = set_aside_and_reopen(manager)
    remove_marks_during(manager, lambda: manager.disposal.set_aside(reopened, Disposal.STRAY))
    manager.close()
    manager = machine.start()
    assert (manager.metrics().stray_logs, manager.reopening.set_aside_logs()) == (1, [])
    manager.close()


def test_a_log_that_is_truncated_while_its_mark_is_removed_has_none(machine: Machine) -> None:
    """A start after a crash would believe its recovery point, which is above the new log end."""
    manager = machine.start()
    reopened = set_aside_and_reopen(manager)
    has_mark: list[bool] = []

    def truncate() -> None:
        manager.truncate_to(name_of(0), 1)
        has_mark.append((reopened.directory / SET_ASIDE).exists())

    remove_marks_during(manager, truncate)
    assert has_mark == [False]
    manager.close()


def test_a_log_that_waits_again_while_its_mark_is_removed_keeps_the_new_one(machine: Machine) -> None:
    manager = machine.start()
    reopened = set_aside_and_reopen(manager)
    remove_marks_during(manager, lambda: manager.disposal.set_aside(reopened, Disposal.WAIT))
    manager.close()
    manager = machine.start()
    (found,) = manager.reopening.set_aside_logs()
    assert (found.path / SET_ASIDE).exists()
    manager.close()


def test_a_log_with_a_mark_that_is_a_stray_at_the_start_loses_it(machine: Machine) -> None:
    """The agent was killed before it removed the mark, and the catalog does not know the topic."""
    manager = machine.start()
    set_aside_and_reopen(manager)
    crash(manager)
    machine.configs = {"orders": None}
    for _ in range(2):
        manager = machine.start()
        assert (manager.metrics().stray_logs, manager.reopening.set_aside_logs()) == (1, [])
        manager.close()


def test_the_last_epoch_of_a_log_is_read_once_while_it_waits(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents ask every few seconds, and a deleted topic may have thousands of partitions."""
    manager = machine.start()
    log = orders(manager)
    log.append_as_leader(bytearray(batch(0)), 4)
    manager.disposal.set_aside(log, Disposal.WAIT)
    (found,) = manager.reopening.set_aside_logs()
    assert manager.reopening.latest_epoch(found) == 4
    with monkeypatch.context() as patch:
        patch.setattr(log_reopening, "latest_epoch", lambda *_: pytest.fail("the disk was read"))
        assert manager.reopening.latest_epoch(found) == 4
    reopened = manager.reopening.reopen(name_of(0), found, SMALL)
    assert reopened is not None
    reopened.append_as_leader(bytearray(batch(0)), 6)
    manager.disposal.set_aside(reopened, Disposal.WAIT)
    (found,) = manager.reopening.set_aside_logs()
    assert manager.reopening.latest_epoch(found) == 6
    manager.close()


def test_a_damaged_mark_makes_a_stray(machine: Machine) -> None:
    """Without the log start, deleted records could return."""
    manager = machine.start()
    manager.disposal.set_aside(orders(manager), Disposal.WAIT)
    (found,) = manager.reopening.set_aside_logs()
    manager.close()
    (found.path / SET_ASIDE).write_bytes(b"version: 0\n")
    manager = machine.start()
    assert (manager.metrics().stray_logs, manager.reopening.set_aside_logs()) == (1, [])
    manager.close()


def test_a_failed_disk_takes_its_waiting_logs_offline(machine: Machine) -> None:
    manager = machine.start()
    log = orders(manager)
    manager.disposal.set_aside(log, Disposal.WAIT)
    (found,) = manager.reopening.set_aside_logs()
    manager._failures.report(found.path.parent, OSError("gone"))
    manager._failures.take_failed_offline()
    assert manager.reopening.set_aside_logs() == []
    assert manager.reopening.reopen(name_of(0), found, SMALL) is None
    manager.disposal.delete_set_aside(found)
    manager.close()


def test_nothing_of_a_waiting_log_changes(machine: Machine) -> None:
    """Neither retention nor the cleaner nor checkpoints know it."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 30)
    manager.disposal.set_aside(log, Disposal.WAIT)
    (found,) = manager.reopening.set_aside_logs()
    before = {path.name: path.read_bytes() for path in found.path.iterdir()}
    machine.scheduler.advance(10 * 86_400_000)
    assert {path.name: path.read_bytes() for path in found.path.iterdir()} == before
    assert found == SetAsideLog(found.path, ORDERS_ID, 0)
    manager.disposal.delete_set_aside(found)
    assert states(machine) == ["delete"]
    machine.scheduler.advance(61_000)
    assert states(machine) == []
    manager.close()
