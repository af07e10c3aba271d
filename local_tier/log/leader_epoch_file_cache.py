"""The leader epochs of a log and the offset at which each began (`leader-epoch-checkpoint`).

The file is a text checkpoint of version 0 with one `epoch offset` per line.

Source: LeaderEpochFileCache and LeaderEpochCheckpointFile of Kafka's storage module; KIP-101, KIP-279.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from local_tier.errors import CorruptCheckpointError
from local_tier.files import file_names
from local_tier.files.checkpoint_files import parse_number, read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from local_tier.files.file_system import FileSystem
    from local_tier.scheduler import Scheduler

_log = structlog.get_logger(__name__)
_VERSION: Final = 0
UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of its first record."""

    epoch: int
    start_offset: int


def latest_epoch(file_system: FileSystem, directory: Path) -> int | None:
    """Return the last epoch of the log in a directory that is not open, or None if it has none.

    Raises CorruptCheckpointError and OSError.
    """
    path = directory / file_names.LEADER_EPOCH_CHECKPOINT
    lines = read_checkpoint(file_system, path, _VERSION)
    return _parse(path, lines[-1]).epoch if lines else None


def _parse(path: Path, line: str) -> EpochEntry:
    fields = line.split(" ")
    if len(fields) != 2:
        raise CorruptCheckpointError(f"checkpoint {path} has a malformed line: {line[:40]!r}")
    return EpochEntry(*(parse_number(path, field) for field in fields))


class LeaderEpochFileCache:
    """The epochs of one log. Epochs and start offsets increase from entry to entry.

    `assign` is durable when it returns. Truncations are written by the scheduler: if a crash prevents that,
    they are repeated when the log is opened.
    """

    def __init__(self, file_system: FileSystem, directory: Path, scheduler: Scheduler) -> None:
        self._file_system = file_system
        self._path = directory / file_names.LEADER_EPOCH_CHECKPOINT
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self.is_lost = False
        """True if the checkpoint could not be read: the epochs are rebuilt from the batches."""
        self._entries: tuple[EpochEntry, ...] = self._read()

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All entries, oldest first."""
        return self._entries

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that `epoch` begins at `start_offset`, unless it is the latest and began before.

        Entries with the same or a higher epoch, or a start at or after `start_offset`, are dropped.
        """
        if epoch < 0 or start_offset < 0:
            return
        entries = self._entries
        if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
            return
        with self._lock:
            kept = self._entries
            while kept and (kept[-1].epoch >= epoch or kept[-1].start_offset >= start_offset):
                kept = kept[:-1]
            self._entries = (*kept, EpochEntry(epoch, start_offset))
        self.write()

    def assign_recovered(self, found: Iterable[EpochEntry]) -> None:
        """Add the epochs found in batches that are newer than those known, with one write."""
        with self._lock:
            before = entries = self._entries
            for entry in found:
                if entry.epoch >= 0 and (not entries or entry.epoch > entries[-1].epoch):
                    entries = (*(old for old in entries if old.start_offset < entry.start_offset), entry)
            self._entries = entries
        if entries != before:
            self.write()

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEntry:
        """Return the last epoch at or before `epoch` and its end offset, or -1 for unknown values."""
        entries = self._entries
        if not entries or epoch == UNDEFINED_EPOCH or epoch > entries[-1].epoch:
            return EpochEntry(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        if epoch == entries[-1].epoch:
            return EpochEntry(epoch, log_end_offset)
        higher = next(entry for entry in entries if entry.epoch > epoch)
        lower = [entry for entry in entries if entry.epoch <= epoch]
        return EpochEntry(lower[-1].epoch if lower else epoch, higher.start_offset)

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the epoch in which the record at `offset` was written, or None."""
        found = None
        for entry in self._entries:
            if entry.start_offset > offset:
                break
            found = entry.epoch
        return found

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that begin at or after `end_offset`."""
        self._replace_entries(tuple(entry for entry in self._entries if entry.start_offset < end_offset))

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the epochs that end at or before `start_offset`.

        The epoch of that offset begins at it afterwards.
        """
        passed = [entry for entry in self._entries if entry.start_offset <= start_offset]
        if passed:
            rest = self._entries[len(passed) :]
            self._replace_entries((EpochEntry(passed[-1].epoch, start_offset), *rest))

    def clear(self) -> None:
        """Durably drop all entries."""
        with self._lock:
            self._entries = ()
        self.write()

    def update_directory(self, directory: Path) -> None:
        """Set the directory after the log's directory was renamed."""
        with self._write_lock:
            self._path = directory / file_names.LEADER_EPOCH_CHECKPOINT

    def write(self) -> None:
        """Make the entries durable, unless the log's directory was deleted."""
        with self._write_lock:
            entries = self._entries
            lines = [f"{entry.epoch} {entry.start_offset}" for entry in entries]
            try:
                write_checkpoint(self._file_system, self._path, _VERSION, lines)
            except FileNotFoundError:
                if self._file_system.status(self._path.parent) is not None:
                    raise

    def _replace_entries(self, entries: tuple[EpochEntry, ...]) -> None:
        with self._lock:
            if entries == self._entries:
                return
            self._entries = entries
        self._scheduler.schedule_once("write-leader-epochs", self.write)

    def _read(self) -> tuple[EpochEntry, ...]:
        try:
            lines = read_checkpoint(self._file_system, self._path, _VERSION) or []
            return tuple(_parse(self._path, line) for line in lines)
        except CorruptCheckpointError as error:
            _log.warning("leader_epochs_lost", path=str(self._path), reason=str(error))
            self.is_lost = True
            return ()
