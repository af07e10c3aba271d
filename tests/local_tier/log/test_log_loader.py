"""Opening a log after it was closed, after a crash, and after a crash amid an exchange of segments."""

from __future__ import annotations

import shutil
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from local_tier.config import LogConfig
from local_tier.files.file_names import CLEANED, DELETED, SWAP
from local_tier.log.segment_replacement import new_cleaned_segment
from local_tier.log.unified_log import Isolation
from local_tier.producers.producer_state_entry import AppendOrigin
from tests.local_tier.batches import batch, marker, offsets_of, rows_of
from tests.local_tier.logs import SMALL, Place, crash

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.log.unified_log import UnifiedLog
    from local_tier.segment.log_segment import LogSegment

COMPACTED: Final = replace(SMALL, compact=True)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def filled(place: Place, count: int = 8) -> UnifiedLog:
    """Segments of two batches, a producer in each, an aborted transaction."""
    log = place.open()
    for i in range(count):
        log.append_as_leader(batch(0, 2, size=200, producer=(7, 0, 2 * i), timestamp=1_000 + i), i // 4)
    log.append_as_leader(batch(0, 1, producer=(8, 0, 0), transactional=True), 2)
    log.append_as_leader(marker(0, producer=(8, 0), abort=True), 2, origin=AppendOrigin.COORDINATOR)
    return log


def contents(log: UnifiedLog) -> tuple[object, ...]:
    """Everything that a log knows."""
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        got = log.read(offset, 10**6, Isolation.LOG_END)
        found += offsets_of(got.data)
        offset = got.next_offset
    return (
        found,
        log.log_end_offset,
        log.leader_epochs,
        log.last_records_of_producers(),
        log.collect_aborted(0, 10**6),
        log.offset_of_max_timestamp(),
        [
            (
                segment.base_offset,
                segment.size,
                segment.offset_index.entries,
                segment.max_timestamp_and_offset,
            )
            for segment in log.segments
        ],
    )


def test_a_log_that_was_closed_opens_without_reading_its_batches(place: Place) -> None:
    """Nothing is recovered, and everything is as it was."""
    log = filled(place)
    log.flush()
    expected = contents(log)
    recovery_point = log.recovery_point
    log.close()
    again = place.open(clean=True, recovery_point=recovery_point)
    assert contents(again) == expected
    assert place.remaining == []
    assert again.recovery_point == again.log_end_offset
    again.close()


@pytest.mark.parametrize("recovery_point", [0, 5, 18])
def test_a_log_that_crashed_is_recovered_from_its_recovery_point(place: Place, recovery_point: int) -> None:
    """Indexes, producers, epochs and transactions are those before the crash; the recovery point stays."""
    log = filled(place)
    expected = contents(log)
    crash(log)
    again = place.open(recovery_point=recovery_point)
    assert contents(again) == expected
    assert again.recovery_point == recovery_point
    assert place.remaining[0] == {0: 5, 5: 4, 18: 1}[recovery_point]
    assert place.remaining[-1] == 0
    assert again.append_as_leader(batch(0, 1, producer=(7, 0, 16)), 3).first_offset == 18
    again.close()


@pytest.mark.parametrize("crashes", [1, 2])
def test_a_producer_may_repeat_any_unanswered_batch_after_a_crash(place: Place, crashes: int) -> None:
    """A snapshot keeps one batch of a producer; recovery has read them all, and the last five are known."""
    log = place.open()
    for sequence in range(5):
        log.append_as_leader(batch(0, 1, producer=(7, 0, sequence)), 0)
    for _ in range(crashes):
        crash(log)
        log = place.open()
    repeated = [log.append_as_leader(batch(0, 1, producer=(7, 0, sequence)), 1) for sequence in range(5)]
    assert [(each.first_offset, each.is_duplicate) for each in repeated] == [(n, True) for n in range(5)]
    assert log.append_as_leader(batch(0, 1, producer=(7, 0, 5)), 1).first_offset == 5
    log.close()


def test_files_that_can_be_built_anew_are(place: Place) -> None:
    """Without indexes, snapshots, epochs and transactions' index, nothing is lost but the time to read."""
    log = filled(place)
    expected = contents(log)
    log.close()
    for path in place.directory.iterdir():
        if path.suffix != ".log":
            path.unlink()
    again = place.open()
    assert contents(again) == expected
    again.close()


@pytest.mark.parametrize("clean", [False, True])
def test_a_damaged_index_of_durable_segments_is_built_anew(place: Place, *, clean: bool) -> None:
    """Below the recovery point indexes are looked at; those that cannot be are made again."""
    log = filled(place)
    log.flush()
    expected = contents(log)
    log.close()
    (place.directory / f"{0:020}.index").write_bytes(b"abc")
    (place.directory / f"{4:020}.timeindex").unlink()
    (place.directory / f"{8:020}.index").write_bytes(struct.pack(">iiii", 9, 1, 0, 0))
    again = place.open(clean=clean, recovery_point=18)
    assert contents(again) == expected
    again.close()


@pytest.mark.parametrize("kind", ["torn", "nonsense"])
def test_a_tail_that_is_not_sound_is_cut_and_what_follows_goes(place: Place, kind: str) -> None:
    """A damaged segment ends before the damage, and later ones are deleted with their snapshots."""
    log = filled(place)
    crash(log)
    path = place.directory / f"{8:020}.log"
    data = path.read_bytes()
    size = len(data) // 2
    path.write_bytes(data[: size + 30] if kind == "torn" else data[: size + 30] + bytes(len(data)))
    again = place.open()
    assert again.log_end_offset == 10
    assert again.last_records_of_producers() == {7: (9, 0)}
    assert again.leader_epochs == ((0, 0), (1, 8))
    assert again.append_as_leader(batch(0, 1, producer=(7, 0, 10)), 1).first_offset == 10
    place.scheduler.advance(60_000)
    assert [name for name in place.names() if name.startswith(("12", "16"))] == []
    again.close()


def test_a_log_that_lost_its_files_begins_at_its_start(place: Place) -> None:
    """What ends before the log start is of no use; offsets never go back below it."""
    crash(filled(place))
    log = place.open(log_start_offset=100, recovery_point=100)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    assert log.leader_epochs == ()
    assert log.append_as_leader(batch(0), 5).first_offset == 100
    log.close()


def test_the_log_start_is_that_of_the_checkpoint_or_of_the_first_segment(place: Place) -> None:
    """Whichever is higher; epochs begin there."""
    filled(place).close()
    log = place.open(clean=True, log_start_offset=5)
    assert (log.log_start_offset, log.leader_epochs[0]) == (5, (0, 5))
    log.close()
    for path in place.directory.glob(f"{0:020}.*"):
        path.unlink()
    log = place.open(clean=True)
    assert log.log_start_offset == 4
    log.close()


def test_an_orphaned_index_is_deleted(place: Place) -> None:
    """An index without batches is no segment."""
    place.open().close()
    (place.directory / f"{99:020}.index").write_bytes(bytes(8))
    place.open(clean=True).close()
    assert f"{99:020}.index" not in [path.name for path in place.directory.iterdir()]


def merged(log: UnifiedLog) -> tuple[LogSegment, list[LogSegment]]:
    """A cleaned segment that has every second batch of the first two segments, and those segments."""
    old = list(log.segments[:2])
    new = new_cleaned_segment(log._context, 0)
    for segment in old:
        data = segment.log.read(0, segment.size)
        rows = rows_of(bytes(data))
        size = int(rows["size"][0])
        last = int(rows["base_offset"][0]) + int(rows["last_offset_delta"][0])
        new.append(last, data[:size].data, rows[:1])
    new.become_inactive()
    new.sync()
    return new, old


def without_its_last_batch(place: Place) -> None:
    """A log as a loss of power may leave it: whole batches of an early segment are gone."""
    log = filled(place)
    segment = log.segments[0]
    crash(log)
    data = segment.path.read_bytes()
    segment.path.write_bytes(data[: int(rows_of(data)["size"][0])])


def test_a_segment_that_has_lost_whole_batches_takes_those_behind_it_with_it(place: Place) -> None:
    """What was appended last goes first: no hole is left in the middle."""
    without_its_last_batch(place)
    again = place.open()
    assert contents(again)[:2] == ([0, 1], 2)
    again.append_as_leader(batch(0, 1), 3)
    assert contents(again)[0] == [0, 1, 2]
    again.close()


def test_offsets_that_are_missing_below_the_recovery_point_were_cleaned(place: Place) -> None:
    """And those of a log whose recovery point is not known, or 0 though it is compacted, may have been."""
    without_its_last_batch(place)
    for config, recovery_point, known in ((SMALL, 4, 4), (COMPACTED, 0, 0), (SMALL, None, 18)):
        again = place.open(config, recovery_point=recovery_point)
        assert contents(again)[0] == [0, 1, *range(4, 18)]
        assert again.recovery_point == known
        crash(again)


def test_a_gap_that_a_follower_is_sent_is_not_taken_for_a_loss(place: Place) -> None:
    """A segment begins where the one before it ended, whatever the offset of its first batch."""
    log = place.open()
    for offset in (0, 10, 20, 30, 2**40):
        log.append_as_follower(batch(offset, 2, size=300))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 12, 22, 2**40]
    crash(log)
    again = place.open()
    assert contents(again)[0] == [0, 1, 10, 11, 20, 21, 30, 31, 2**40, 2**40 + 1]
    again.close()


def test_cleaned_segments_take_the_place_of_others(place: Place) -> None:
    """Readers see the new ones at once, the old files go later, a restart sees the same."""
    log = filled(place)
    log.replace_segments([merged(log)[0]], log.segments[:2])
    expected = contents(log)
    assert expected[0] == [0, 1, 4, 5, *range(8, 18)]
    assert "4.snapshot" not in place.names()
    assert [name for name in place.names() if name.endswith(DELETED)]
    place.scheduler.advance(60_000)
    assert not [name for name in place.names() if name.endswith((DELETED, SWAP, CLEANED))]
    crash(log)
    again = place.open(COMPACTED)
    assert contents(again) == expected
    again.close()


class StoppedError(Exception):
    """The process ends here."""


@pytest.mark.parametrize("stop_at", range(12))
def test_an_exchange_of_segments_is_done_or_undone_wherever_it_stops(place: Place, stop_at: int) -> None:
    """After each rename there is either all of the old segments or all of the new one, and no suffix."""
    log = filled(place)
    old = contents(log)
    new, segments_to_delete = merged(log)
    log.replace_segments([new], segments_to_delete)
    replaced = contents(log)
    place.scheduler.advance(60_000)
    log.delete()

    log = filled(place)
    new, segments_to_delete = merged(log)
    renames = 0
    rename = place.fs.rename

    def stopping(source: Path, target: Path) -> None:
        nonlocal renames
        if renames == stop_at:
            raise StoppedError
        renames += 1
        rename(source, target)

    place.fs.rename = stopping  # type: ignore[method-assign]
    with pytest.raises(StoppedError):
        log.replace_segments([new], segments_to_delete)
    place.fs.rename = rename  # type: ignore[method-assign]
    crash(log)
    new.close_handles()
    again = place.open(COMPACTED)
    assert contents(again)[0] == (old if stop_at < 3 else replaced)[0]
    assert contents(again)[3:6] == old[3:6]
    assert not [name for name in place.names() if name.endswith((DELETED, SWAP, CLEANED))]
    again.close()


def test_a_segment_whose_offsets_span_too_much_is_split(place: Place) -> None:
    """Older versions could write one; it is opened as several (KAFKA-6264)."""
    log = place.open(LogConfig(segment_index_bytes=1200))
    log.append_as_follower(batch(0, 1, epoch=1) + batch(5, 1, epoch=1))
    log.close()
    with (place.directory / f"{0:020}.log").open("ab") as file:
        file.write(batch(2**31 + 3, 1, epoch=1) + batch(2**31 + 9, 1, epoch=1) + batch(2**33, 1, epoch=1))
    again = place.open(LogConfig(segment_index_bytes=1200))
    assert [segment.base_offset for segment in again.segments] == [0, 2**31 + 3, 2**33]
    assert contents(again)[0] == [0, 5, 2**31 + 3, 2**31 + 9, 2**33]
    assert not [name for name in place.names() if name.endswith((SWAP, CLEANED))]
    again.close()


def test_a_segment_may_be_split_while_its_log_is_open(place: Place) -> None:
    """The cleaner asks for it when its output does not fit."""
    log = place.open()
    log.append_as_follower(batch(0))
    wide = log.segments[0]
    data = batch(2**31 + 3)
    wide.log.append(data)
    log._local_log.log_end_offset = 2**31 + 4
    parts = log.split_overflowed_segment(wide)
    assert [part.base_offset for part in parts] == [0, 2**31 + 3]
    assert contents(log)[0] == [0, 2**31 + 3]
    log.close()


def test_a_copy_of_a_closed_directory_is_the_same_log(place: Place, tmp_path: Path) -> None:
    """Nothing but the files makes the log."""
    log = filled(place)
    expected = contents(log)
    log.close()
    other = Place(tmp_path / "elsewhere")
    shutil.copytree(place.directory, other.directory)
    again = other.open(SMALL, clean=True)
    assert contents(again) == expected
    again.close()
