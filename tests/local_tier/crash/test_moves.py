"""Moves of logs between directories, ended by a kill or a power loss at every disk operation."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from typing_extensions import override

from local_tier.manager.log_copy import LogCopy
from tests.local_tier.batches import offsets_of
from tests.local_tier.crash.power_loss import PowerLossFileSystem
from tests.local_tier.crash.unsynced import UnsyncedFileSystem
from tests.local_tier.manager.managers import Machine, crash, fill, name_of, orders
from tests.local_tier.steps import DiskError, NoFaults, SteppedFileSystem, Switch

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_manager import LogManager

_START, _END = 3, 7


class _EndedError(BaseException):
    """The process or the machine has ended."""


class _EndAtError(DiskError):
    """Ends at the nth change. Reads change nothing."""

    def __init__(self, nth: int) -> None:
        super().__init__("", nth)

    @override
    def _due(self, step: str) -> bool:
        return not step.startswith(("read", "list")) and super()._due(step)

    @override
    def cut(self, step: str) -> NoReturn:
        raise _EndedError(step)


def machine_on(disk: Path, files: FileSystem) -> Machine:
    return Machine((disk / "a", disk / "b"), files=files)


def source_and_target(machine: Machine, manager: LogManager) -> tuple[Path, Path]:
    log = manager.get(name_of(0))
    assert log is not None
    source = log.directory.parent
    return source, next(path for path in machine.directories if path != source)


def move(machine: Machine, manager: LogManager) -> None:
    """Move the log, and record it as the catalog does."""
    source = manager.get(name_of(0))
    assert source is not None
    _, target = source_and_target(machine, manager)
    target_id = manager.directory_id(target)
    assert target_id is not None
    copy = LogCopy(source, manager.moves.create_future_log(name_of(0), target))
    while not copy.is_at(source.log_end_offset):
        copy.write(copy.read())
    manager.moves.make_replaceable(source, copy.future)
    machine.recorded[name_of(0)] = target_id
    manager.moves.replace_current_with_future_log(name_of(0))


def is_ended_by(nth: int, root: Path) -> bool:
    """Move a log until its nth change of a disk, and check the log after a kill and after a power loss."""
    disk, after = root / f"{nth}", root / f"{nth}-after"
    disk.mkdir()
    files = PowerLossFileSystem(disk)
    switch = Switch(NoFaults())
    before = machine_on(disk, SteppedFileSystem(files, switch))
    manager = before.start()
    log = orders(manager)
    fill(log, _END)
    log.flush(force_active=True)
    manager.delete_records(name_of(0), _START)
    source, target = source_and_target(before, manager)
    switch.faults = _EndAtError(nth)
    ended = True
    with suppress(_EndedError):
        move(before, manager)
        ended = False
    switch.faults = NoFaults()
    files.lose_power(after, None)
    crash(manager)
    for left in (disk, after):
        again = machine_on(left, UnsyncedFileSystem())
        again.recorded = before.recorded
        manager = again.start()
        (log,) = manager.logs()
        check(log, left / (target.name if before.recorded else source.name) / "orders-0")
        assert manager.future_logs() == []
        crash(manager)
    return ended


def check(log: UnifiedLog, directory: Path) -> None:
    """Check that the log has all records, and takes another one."""
    assert log.directory == directory
    log.update_high_watermark(log.log_end_offset)
    assert (log.log_start_offset, log.log_end_offset) == (_START, _END)
    fill(log, 1)
    found: list[int] = []
    while log.log_end_offset not in {offset + 1 for offset in found[-1:]}:
        found += offsets_of(log.read(found[-1] + 1 if found else _START, 1 << 20).data)
    assert found == list(range(_START, _END + 1))


def test_a_move_that_ends_at_any_disk_operation_leaves_one_complete_log(tmp_path: Path) -> None:
    """Before the catalog has the target, it is the source; afterwards it is the copy."""
    nth = 1
    while is_ended_by(nth, tmp_path):
        nth += 1
    assert nth > 20
