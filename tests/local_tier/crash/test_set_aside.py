"""Logs that are set aside and opened again, ended by a kill or a power loss at every disk operation."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest

from local_tier.manager.set_aside_logs import Disposal
from tests.local_tier.crash.power_loss import PowerLossFileSystem
from tests.local_tier.crash.test_moves import _END, _START, _EndAtError, _EndedError, check, machine_on
from tests.local_tier.crash.unsynced import UnsyncedFileSystem
from tests.local_tier.manager.managers import ORDERS_ID, SMALL, crash, fill, name_of, orders
from tests.local_tier.steps import NoFaults, SteppedFileSystem, Switch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from local_tier.manager.log_manager import LogManager
    from local_tier.topic_partition import TopicPartition


def all_wait(
    logs: Collection[tuple[TopicPartition, UUID]],
) -> Mapping[tuple[TopicPartition, UUID], Disposal]:
    return dict.fromkeys(logs, Disposal.WAIT)


_PARTITIONS: Final = 2
_OTHER_ID: Final = UUID(int=77)


def reopen(manager: LogManager) -> None:
    """Open the logs again as an agent does, if they wait."""
    for partition in range(_PARTITIONS):
        found = manager.reopening.find(ORDERS_ID, partition, None)
        if found is not None:
            assert manager.reopening.reopen(name_of(partition), found, SMALL) is not None
    manager.marks.remove()


def is_ended_by(nth: int, root: Path, *, is_deleted: bool) -> bool:
    """End at the nth change of a disk, and check the logs after a kill and after a power loss.

    If the topic `is_deleted` at the next start, it is undeleted afterwards.
    """
    disk, after = root / f"{nth}", root / f"{nth}-after"
    disk.mkdir()
    files = PowerLossFileSystem(disk)
    switch = Switch(NoFaults())
    before = machine_on(disk, SteppedFileSystem(files, switch))
    manager = before.start()
    logs = [orders(manager, partition) for partition in range(_PARTITIONS)]
    directories = [log.directory.parent.name for log in logs]
    for log in logs:
        fill(log, _END)
        manager.delete_records(log.topic_partition, _START)
        log.flush(force_active=True)
    manager.periodic_tasks.checkpoint_recovery_points()
    switch.faults = _EndAtError(nth)
    ended = True
    with suppress(_EndedError):
        manager.disposal.set_all_aside((log, Disposal.WAIT) for log in logs)
        reopen(manager)
        ended = False
    switch.faults = NoFaults()
    files.lose_power(after, None)
    crash(manager)
    for left in (disk, after):
        again = machine_on(left, UnsyncedFileSystem())
        again.configs = {"orders": None} if is_deleted else {}
        manager = again.manager()
        manager.start(again.config_of, all_wait, clean=False)
        reopen(manager)
        for partition, directory in enumerate(directories):
            check(orders(manager, partition), left / directory / f"orders-{partition}")
        manager.close()
        assert manager.metrics().stray_logs == manager.metrics().offline_logs == 0
        again.configs = {}
        manager = again.start()
        assert [log.log_start_offset for log in manager.logs()] == [_START] * _PARTITIONS
        crash(manager)
    return ended


def is_taken_over_by(nth: int, root: Path) -> bool:
    """Create logs of another topic under the same names, while the checkpoints have entries of the old logs.

    Check the new logs after a kill at the nth change of a disk.
    """
    disk = root / f"{nth}"
    disk.mkdir()
    switch = Switch(NoFaults())
    before = machine_on(disk, SteppedFileSystem(UnsyncedFileSystem(), switch))
    manager = before.start()
    for partition in range(_PARTITIONS):
        log = orders(manager, partition)
        fill(log, _END)
        manager.delete_records(log.topic_partition, _START)
        log.flush(force_active=True)
    manager.periodic_tasks.checkpoint_recovery_points()
    switch.faults = _EndAtError(nth)
    ended = True
    created: list[int] = []
    with suppress(_EndedError):
        for partition, log in enumerate(manager.logs()):
            # The checkpoints are written after the last one.
            manager.disposal._set_aside_one(log, Disposal.WAIT, set())
            fill(manager.get_or_create("orders", _OTHER_ID, partition, SMALL), 1)
            created.append(partition)
        ended = False
    switch.faults = NoFaults()
    crash(manager)
    manager = machine_on(disk, UnsyncedFileSystem()).start()
    for log in manager.logs():
        partition = log.topic_partition.partition
        if log.topic_id == ORDERS_ID:
            assert (log.log_start_offset, log.log_end_offset) == (_START, _END)
        else:
            assert log.log_start_offset == 0
            assert log.log_end_offset == 1 or partition not in created
            assert log.log_end_offset <= 1
    crash(manager)
    return ended


@pytest.mark.parametrize("is_deleted", [False, True])
def test_logs_that_are_set_aside_or_opened_again_are_never_lost(tmp_path: Path, *, is_deleted: bool) -> None:
    nth = 1
    while is_ended_by(nth, tmp_path, is_deleted=is_deleted):
        nth += 1
    assert nth > 10 * _PARTITIONS


def test_new_logs_ignore_the_entries_of_logs_that_are_being_set_aside(tmp_path: Path) -> None:
    nth = 1
    while is_taken_over_by(nth, tmp_path):
        nth += 1
    assert nth > 10 * _PARTITIONS
