"""The checkpoints of a log directory are written once for many logs, not once for each."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from local_tier.files.file_names import (
    CLEANER_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    SET_ASIDE,
)
from local_tier.manager.set_aside_logs import Disposal
from tests.local_tier.crash.unsynced import UnsyncedFileSystem
from tests.local_tier.manager.managers import SMALL, Machine, delete_log, fill, name_of, orders
from tests.local_tier.steps import NoFaults, SteppedFileSystem

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.config import LogConfig

PARTITIONS = 200
CHECKPOINTS = (RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, CLEANER_CHECKPOINT)
COMPACTED = replace(SMALL, compact=True, min_cleanable_dirty_ratio=0.0)


class Written(NoFaults):
    """Counts the bytes of writes, too."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    @override
    def share(self, step: str, size: int) -> int:
        self.bytes[step] += size
        return super().share(step, size)

    def take(self) -> dict[str, tuple[int, int]]:
        """Return the writes of each checkpoint and their bytes since the last call."""
        steps = {name: f"write {name}.tmp" for name in CHECKPOINTS}
        found = {name: (self.steps[step], self.bytes[step]) for name, step in steps.items()}
        self.steps.clear()
        self.bytes.clear()
        return found


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def machine(tmp_path: Path, written: Written) -> Machine:
    return Machine((tmp_path / "a",), files=SteppedFileSystem(UnsyncedFileSystem(), written))


@pytest.mark.parametrize("config", [SMALL, COMPACTED])
def test_a_topic_is_deleted_and_undeleted_with_a_few_writes(
    machine: Machine, written: Written, config: LogConfig
) -> None:
    manager = machine.start()
    logs = [orders(manager, partition, config) for partition in range(PARTITIONS)]
    for log in logs:
        fill(log, 3)
        log.delete_records(1)
    manager.checkpoint_log_starts(machine.directories[0])
    (cleaner,) = manager.cleaners.values()
    cleaner.manager.update_checkpoints(machine.directories[0], {log.topic_partition: 2 for log in logs})
    written.take()

    assert len(manager.disposal.set_all_aside((log, Disposal.WAIT) for log in logs)) == PARTITIONS
    for (count, size), name in zip(written.take().values(), CHECKPOINTS, strict=True):
        assert count == 1, name
        assert size < 100, name

    for found in manager.reopening.set_aside_logs():
        manager.reopening.reopen(name_of(found.partition), found, config)
    assert set(written.take().values()) == {(0, 0)}
    manager.marks.remove()
    manager.marks.remove()
    writes = written.take()
    assert [count for count, _ in writes.values()] == [1, 1, 0]
    assert all(size < 20 * PARTITIONS for _, size in writes.values())
    assert not list(machine.directories[0].glob(f"*/{SET_ASIDE}"))

    manager.disposal.set_all_aside((log, Disposal.DELETE) for log in manager.logs())
    assert max(count for count, _ in written.take().values()) == 1
    manager.close()


def test_the_cleaner_corrects_all_first_dirty_offsets_with_one_write(
    machine: Machine, written: Written
) -> None:
    manager = machine.start()
    logs = [orders(manager, partition, COMPACTED) for partition in range(20)]
    for log in logs:
        fill(log, 3)
        log.delete_records(2)
    (cleaner,) = manager.cleaners.values()
    cleaner.manager.update_checkpoints(machine.directories[0], {log.topic_partition: 1 for log in logs})
    written.take()
    assert cleaner.manager.grab_filthiest_log() is None
    assert written.take()[CLEANER_CHECKPOINT][0] == 1
    assert set(cleaner.manager.checkpoints().values()) == {2}
    manager.close()


def test_records_of_many_logs_are_deleted_with_one_write(machine: Machine, written: Written) -> None:
    manager = machine.start()
    logs = [orders(manager, partition) for partition in range(20)]
    for log in logs:
        fill(log, 3)
    written.take()
    for log in logs:
        log.delete_records(2)
    manager.checkpoint_log_starts(machine.directories[0])
    assert written.take()[LOG_START_OFFSET_CHECKPOINT][0] == 1
    manager.close()
    manager = machine.start()
    assert {log.log_start_offset for log in manager.logs()} == {2}
    manager.close()


def test_a_log_without_an_entry_does_not_cause_a_write_of_the_cleaner(
    machine: Machine, written: Written
) -> None:
    manager = machine.start()
    orders(manager)
    written.take()
    delete_log(manager, name_of(0))
    assert written.take()[CLEANER_CHECKPOINT] == (0, 0)
    manager.close()
