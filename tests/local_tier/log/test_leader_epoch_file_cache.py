"""The leader epochs of a log and their checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.clock import ManualClock
from local_tier.files.file_system import RealFileSystem
from local_tier.log.leader_epoch_file_cache import EpochEntry, LeaderEpochFileCache
from tests.local_tier.manual_scheduler import ManualScheduler

if TYPE_CHECKING:
    from pathlib import Path


def opened(directory: Path) -> tuple[LeaderEpochFileCache, ManualScheduler]:
    scheduler = ManualScheduler(ManualClock())
    return LeaderEpochFileCache(RealFileSystem(), directory, scheduler), scheduler


def test_an_assigned_epoch_is_durable_in_kafkas_format(tmp_path: Path) -> None:
    """The file has a version, a count, and one epoch and start offset per line."""
    epochs, _ = opened(tmp_path)
    epochs.assign(0, 0)
    epochs.assign(3, 17)
    epochs.assign(3, 20)
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n3 17\n"
    assert opened(tmp_path)[0].entries == ((0, 0), (3, 17))


def test_an_assigned_epoch_drops_contradicting_entries(tmp_path: Path) -> None:
    """It replaces entries with a higher epoch or start offset. A negative epoch is ignored."""
    epochs, _ = opened(tmp_path)
    for epoch, offset in ((1, 0), (2, 10), (4, 20)):
        epochs.assign(epoch, offset)
    epochs.assign(5, 10)
    epochs.assign(-1, 30)
    assert epochs.entries == ((1, 0), (5, 10))


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-1, (-1, -1)), (0, (0, 5)), (1, (1, 10)), (2, (1, 10)), (3, (3, 99)), (4, (-1, -1))],
)
def test_the_end_offset_of_an_epoch(tmp_path: Path, epoch: int, expected: tuple[int, int]) -> None:
    """The newest epoch ends at the log end, others at the start of the next.

    Unknown epochs return -1 as in Kafka.
    """
    epochs, _ = opened(tmp_path)
    epochs.assign(1, 5)
    epochs.assign(3, 10)
    assert epochs.end_offset_for(epoch, 99) == expected


def test_truncations_are_written_by_the_scheduler(tmp_path: Path) -> None:
    """Epochs above the end are dropped. The epoch of the new start begins there."""
    epochs, scheduler = opened(tmp_path)
    for epoch, offset in ((1, 0), (2, 10), (4, 20), (6, 30)):
        epochs.assign(epoch, offset)
    epochs.truncate_from_end(30)
    epochs.truncate_from_start(15)
    assert epochs.entries == ((2, 15), (4, 20))
    assert len(opened(tmp_path)[0].entries) == 4
    scheduler.run()
    assert opened(tmp_path)[0].entries == ((2, 15), (4, 20))
    assert [epochs.epoch_for_offset(offset) for offset in (14, 15, 19, 20)] == [None, 2, 2, 4]
    epochs.clear()
    assert opened(tmp_path)[0].entries == ()


def test_recovered_epochs_are_added_if_they_are_newer(tmp_path: Path) -> None:
    """Recovery never drops a newer epoch."""
    epochs, _ = opened(tmp_path)
    epochs.assign(2, 10)
    epochs.assign_recovered([EpochEntry(1, 0), EpochEntry(2, 12), EpochEntry(5, 20), EpochEntry(-1, 30)])
    assert opened(tmp_path)[0].entries == ((2, 10), (5, 20))


def test_an_older_epoch_replaces_newer_ones_that_it_contradicts(tmp_path: Path) -> None:
    """As in Kafka, the epoch of the last batches counts, even if it is lower."""
    epochs, _ = opened(tmp_path)
    for epoch, offset in ((1, 0), (3, 10), (6, 20)):
        epochs.assign(epoch, offset)
    epochs.assign(2, 30)
    assert epochs.entries == ((1, 0), (2, 30))


def test_a_malformed_epoch_checkpoint_is_lost(tmp_path: Path) -> None:
    """An entry has two numbers. The log rebuilds the epochs from its batches."""
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n1\n1 2 3\n")
    epochs, _ = opened(tmp_path)
    assert epochs.is_lost
    assert epochs.entries == ()
