"""A log is replaced by its copy in another log directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.errors import InvalidInputError, NotFoundError, StaleStateError
from local_tier.errors import LogClosedError
from local_tier.manager.log_copy import LogCopy
from tests.local_tier.manager.managers import Machine, crash, fill, name_of, orders, readable

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine((tmp_path / "a", tmp_path / "b"))


def test_a_future_log_replaces_the_current_log(machine: Machine) -> None:
    manager = machine.start()
    log = orders(manager)
    fill(log, 10)
    target = next(path for path in machine.directories if path != log.directory.parent)
    future = manager.moves.create_future_log(name_of(0), target)
    crash_names = machine.names(machine.directories.index(target))
    copy_all(LogCopy(log, future))
    manager.moves.make_replaceable(log, future)
    moved = manager.moves.replace_current_with_future_log(name_of(0))

    assert [name.endswith("-future") for name in crash_names] == [True]
    assert moved is future is manager.get(name_of(0))
    assert manager.get(name_of(0), future=True) is None
    assert (moved.directory, readable(moved)) == (target / "orders-0", list(range(10)))
    machine.scheduler.advance(60_000)
    fill(moved, 2)
    manager.close()
    again = machine.start()
    found = [(log.directory, readable(log)) for log in again.logs()]
    again.close()
    assert found == [(target / "orders-0", list(range(12)))]


def copy_all(copy: LogCopy) -> None:
    while not copy.is_at(copy.source.log_end_offset):
        copy.write(copy.read())


@pytest.mark.parametrize("start", [0, 3, 10])
def test_a_copy_begins_and_ends_like_its_source(machine: Machine, start: int) -> None:
    """Records may be deleted before and during the copy; the last offsets may have no record."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 10)
    log.delete_records(start)
    log.delete_old_segments()
    target = next(path for path in machine.directories if path != log.directory.parent)
    copy = LogCopy(log, manager.moves.create_future_log(name_of(0), target))
    copy.write(copy.read())
    fill(log, 10)
    log.delete_records(15)
    copy_all(copy)
    fill(log, 2)
    log.skip_to(30)
    log.update_high_watermark(30)
    log.delete_records(21)
    with pytest.raises(StaleStateError):
        manager.moves.make_replaceable(log, copy.future)
    copy_all(copy)
    copy.follow_start()
    manager.moves.make_replaceable(log, copy.future)
    moved = manager.moves.replace_current_with_future_log(name_of(0))
    fill(moved, 1)
    with pytest.raises(LogClosedError):
        log.read(21, 100)
    assert (moved.log_start_offset, readable(moved), moved.log_end_offset) == (21, [21, 30], 31)
    manager.close()
    again = machine.start()
    found = [(log.log_start_offset, readable(log)) for log in again.logs()]
    again.close()
    assert found == [(21, [21, 30])]


def test_a_crash_before_the_end_of_a_move_leaves_one_log(machine: Machine) -> None:
    """Before the catalog records the target, the copy is deleted; afterwards it is the log."""
    manager = machine.start()
    log = orders(manager)
    fill(log, 10)
    source = log.directory.parent
    target = next(path for path in machine.directories if path != source)
    for is_recorded in (False, True):
        copy = LogCopy(log, manager.moves.create_future_log(name_of(0), target))
        copy_all(copy)
        manager.moves.make_replaceable(log, copy.future)
        if is_recorded:
            target_id = manager.directory_id(target)
            assert target_id is not None
            machine.recorded[name_of(0)] = target_id
        crash(manager)
        manager = machine.start()
        (log,) = manager.logs()
        log.update_high_watermark(log.log_end_offset)
        assert log.directory == (target if is_recorded else source) / "orders-0"
        assert readable(log) == list(range(10))
        assert manager.get(name_of(0), future=True) is None
    aside = machine.names(machine.directories.index(source))
    assert [name[-6:] for name in aside] == ["-stray"]
    manager.close()


def test_an_unfinished_copy_is_deleted_at_the_next_start(machine: Machine) -> None:
    manager = machine.start()
    log = orders(manager)
    fill(log, 10)
    target = next(path for path in machine.directories if path != log.directory.parent)
    manager.moves.create_future_log(name_of(0), target).append_as_follower(log.read(0, 300).data)
    with pytest.raises(InvalidInputError, match="is being moved"):
        manager.moves.create_future_log(name_of(0), target)
    orders(manager, 1)
    with pytest.raises(InvalidInputError, match="cannot be moved to"):
        manager.moves.create_future_log(name_of(1), machine.directories[0] / "elsewhere")
    manager.close()

    again = machine.start()
    future, current = again.get(name_of(0), future=True), again.get(name_of(0))
    assert future is None
    assert current is not None
    assert current.log_end_offset == 10
    assert [name[-7:] for name in machine.names(machine.directories.index(target))][:1] == ["-delete"]
    with pytest.raises(NotFoundError):
        again.moves.replace_current_with_future_log(name_of(0))
    again.close()
