"""The leader epochs of a log and their checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.clock import ManualClock
from local_tier.errors import CorruptCheckpointError
from local_tier.files.file_system import RealFileSystem
from local_tier.log.leader_epoch_file_cache import EpochEntry, LeaderEpochFileCache
from tests.local_tier.manual_scheduler import ManualScheduler

if TYPE_CHECKING:
    from pathlib import Path


def opened(directory: Path) -> tuple[LeaderEpochFileCache, ManualScheduler]:
    scheduler = ManualScheduler(ManualClock())
    return LeaderEpochFileCache(RealFileSystem(), directory, scheduler), scheduler


def test_an_epoch_is_durable_in_kafkas_text_once_it_is_assigned(tmp_path: Path) -> None:
    """Version, count, then an epoch and its start offset a line."""
    epochs, _ = opened(tmp_path)
    epochs.assign(0, 0)
    epochs.assign(3, 17)
    epochs.assign(3, 20)
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n3 17\n"
    assert opened(tmp_path)[0].entries == ((0, 0), (3, 17))


def test_an_epoch_drops_those_that_contradict_it(tmp_path: Path) -> None:
    """An epoch that begins at or before known ones takes their place; one without number is none."""
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
def test_where_an_epoch_ends(tmp_path: Path, epoch: int, expected: tuple[int, int]) -> None:
    """The newest ends with the log, others where the next begins; unknown ones are answered as Kafka does."""
    epochs, _ = opened(tmp_path)
    epochs.assign(1, 5)
    epochs.assign(3, 10)
    assert epochs.end_offset_for(epoch, 99) == expected


def test_truncations_reach_the_disk_later(tmp_path: Path) -> None:
    """Epochs behind the end go; the one that spans the start begins there."""
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


def test_epochs_that_batches_show_are_taken_when_they_are_newer(tmp_path: Path) -> None:
    """A recovery never takes an epoch back."""
    epochs, _ = opened(tmp_path)
    epochs.assign(2, 10)
    epochs.assign_recovered([EpochEntry(1, 0), EpochEntry(2, 12), EpochEntry(5, 20), EpochEntry(-1, 30)])
    assert opened(tmp_path)[0].entries == ((2, 10), (5, 20))


def test_a_checkpoint_that_was_never_written_is_refused(tmp_path: Path) -> None:
    """An entry has two numbers."""
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n1\n1 2 3\n")
    with pytest.raises(CorruptCheckpointError):
        opened(tmp_path)
