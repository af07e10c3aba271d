"""Producer snapshots: `<offset>.snapshot` holds the state of all producers of a log below that offset.

::

    version        int16   1
    checksum       uint32  CRC-32C of everything after it
    entry count    int32
    entries, 46 bytes each:
      producer id               int64
      producer epoch            int16
      last sequence             int32
      last offset               int64   of the last data batch, -1 if there is none
      offset delta              int32   of that batch
      timestamp                 int64
      coordinator epoch         int32
      transaction first offset  int64   -1 if no transaction is open

Source: ProducerSnapshot.json and ProducerStateManager of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import bisect
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import crc32c

from local_tier.errors import CorruptSnapshotError
from local_tier.files import file_names
from local_tier.files.file_system import read_file
from local_tier.producers.producer_state_entry import BatchMetadata, ProducerStateEntry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from local_tier.files.file_system import FileSystem

VERSION: Final = 1
_HEADER: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")


def encode_snapshot(producers: Iterable[ProducerStateEntry]) -> bytes:
    """Return the bytes of a snapshot."""
    entries = [
        _ENTRY.pack(
            state.producer_id,
            state.producer_epoch,
            state.last_sequence,
            state.last_offset,
            state.last_offset_delta,
            state.last_timestamp,
            state.coordinator_epoch,
            -1 if state.current_txn_first_offset is None else state.current_txn_first_offset,
        )
        for state in producers
    ]
    body = b"".join((_COUNT.pack(len(entries)), *entries))
    return _HEADER.pack(VERSION, crc32c.crc32c(body)) + body


def decode_snapshot(data: bytes, path: Path) -> list[ProducerStateEntry]:
    """Return the producers of a snapshot. Raises CorruptSnapshotError, whose message names `path`."""
    if len(data) < _HEADER.size + _COUNT.size:
        raise CorruptSnapshotError(f"{path} has {len(data)} bytes, too few for a producer snapshot")
    version, checksum = _HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshotError(f"{path} has version {version}, but only {VERSION} is supported")
    body = memoryview(data)[_HEADER.size :]
    if crc32c.crc32c(body) != checksum:
        raise CorruptSnapshotError(f"the CRC-32C of {path} does not match its bytes")
    (count,) = _COUNT.unpack_from(body)
    if len(body) != _COUNT.size + count * _ENTRY.size:
        raise CorruptSnapshotError(f"the size of {path} does not match its {count} producers")
    return [_state(*fields) for fields in _ENTRY.iter_unpack(body[_COUNT.size :])]


def _state(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    current_txn_first_offset: int,
) -> ProducerStateEntry:
    state = ProducerStateEntry(
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        last_timestamp=timestamp,
        current_txn_first_offset=None if current_txn_first_offset < 0 else current_txn_first_offset,
    )
    if last_offset >= 0:
        state.batches.append(BatchMetadata(last_sequence, last_offset, offset_delta, timestamp))
    return state


class ProducerSnapshots:
    """The snapshots in a log's directory.

    The list of snapshots is kept in memory. A caller that deletes files by other means must call `reload`.
    """

    def __init__(self, file_system: FileSystem, directory: Path) -> None:
        self.directory = directory
        self._file_system = file_system
        self._offsets: list[int] = []
        self.reload()

    def reload(self) -> None:
        """List the directory again."""
        found = (file_names.parse_segment_file(name) for name in self._file_system.list_dir(self.directory))
        self._offsets = sorted(parsed[0] for parsed in found if parsed and parsed[1] == file_names.SNAPSHOT)

    @property
    def offsets(self) -> list[int]:
        """The offsets of all snapshots, in order."""
        return list(self._offsets)

    @property
    def latest(self) -> int | None:
        """The offset of the newest snapshot, or None."""
        return self._offsets[-1] if self._offsets else None

    def path(self, offset: int) -> Path:
        """Return the path of the snapshot at an offset."""
        return file_names.segment_file(self.directory, offset, file_names.SNAPSHOT)

    def write(self, offset: int, producers: Iterable[ProducerStateEntry], *, sync: bool) -> Path:
        """Write a snapshot in place: a torn one is detected by its checksum."""
        path = self.path(offset)
        file = self._file_system.open(path, create=True)
        try:
            file.truncate(0)
            file.write(encode_snapshot(producers), 0)
            if sync:
                file.sync()
        finally:
            file.close()
        if offset not in self._offsets:
            bisect.insort(self._offsets, offset)
        return path

    def sync(self, offset: int) -> None:
        """Make a snapshot durable that was written without a sync. It may have been deleted since."""
        with suppress(FileNotFoundError):
            file = self._file_system.open(self.path(offset))
            try:
                file.sync()
            finally:
                file.close()

    def read(self, offset: int) -> list[ProducerStateEntry]:
        """Return the producers of a snapshot. Raises CorruptSnapshotError."""
        return decode_snapshot(read_file(self._file_system, self.path(offset)) or b"", self.path(offset))

    def delete(self, offset: int) -> None:
        """Unlink a snapshot."""
        self._file_system.unlink(self.path(offset), missing_ok=True)
        if offset in self._offsets:
            self._offsets.remove(offset)

    def mark_deleted(self, offset: int) -> Path | None:
        """Rename a snapshot to `.deleted`. Return the path to unlink later, or None without a snapshot."""
        if offset not in self._offsets:
            return None
        self._offsets.remove(offset)
        target = file_names.with_suffix(self.path(offset), file_names.DELETED)
        with suppress(FileNotFoundError):
            self._file_system.rename(self.path(offset), target)
            return target
        return None

    def delete_stray_snapshots(self, base_offsets: Collection[int]) -> None:
        """Delete the snapshots that belong to no segment.

        The newest of them stays if it is after all segments: it was written when the log was closed, and
        saves the next start a scan.
        """
        self.reload()
        strays = [offset for offset in self._offsets if offset not in base_offsets]
        if strays and base_offsets and strays[-1] >= max(base_offsets):
            strays.pop()
        for offset in strays:
            self.delete(offset)
