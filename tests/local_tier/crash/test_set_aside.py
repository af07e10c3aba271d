"""Logs that are set aside and opened again, ended by a kill or a power loss at every disk operation."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

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
    from uuid import UUID

    from local_tier.manager.log_manager import LogManager
    from local_tier.topic_partition import TopicPartition


def all_wait(
    logs: Collection[tuple[TopicPartition, UUID]],
) -> Mapping[tuple[TopicPartition, UUID], Disposal]:
    return dict.fromkeys(logs, Disposal.WAIT)


def reopen(manager: LogManager) -> None:
    """Open the log again as an agent does, if it waits."""
    found = manager.find_set_aside(ORDERS_ID, 0, None)
    if found is not None:
        assert manager.reopen(name_of(0), found, SMALL) is not None


def is_ended_by(nth: int, root: Path, *, is_deleted: bool) -> bool:
    """End at the nth change of a disk, and check the log after a kill and after a power loss.

    If the topic `is_deleted` at the next start, it is undeleted afterwards.
    """
    disk, after = root / f"{nth}", root / f"{nth}-after"
    disk.mkdir()
    files = PowerLossFileSystem(disk)
    switch = Switch(NoFaults())
    before = machine_on(disk, SteppedFileSystem(files, switch))
    manager = before.start()
    log = orders(manager)
    directory = log.directory.parent.name
    fill(log, _END)
    manager.delete_records(name_of(0), _START)
    log.flush(force_active=True)
    switch.faults = _EndAtError(nth)
    ended = True
    with suppress(_EndedError):
        manager.set_aside(log, Disposal.WAIT)
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
        check(manager, left / directory)
        manager.close()
        assert manager.metrics().stray_logs == manager.metrics().offline_logs == 0
        again.configs = {}
        manager = again.start()
        assert [log.log_start_offset for log in manager.logs()] == [_START]
        crash(manager)
    return ended


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_log_that_is_set_aside_or_opened_again_is_never_lost(tmp_path: Path, *, is_deleted: bool) -> None:
    nth = 1
    while is_ended_by(nth, tmp_path, is_deleted=is_deleted):
        nth += 1
    assert nth > 10
