"""The snapshot files of a log's directory, by offset."""

from __future__ import annotations

import bisect
from contextlib import suppress
from typing import TYPE_CHECKING

from local_tier.files import file_names
from local_tier.files.whole_files import read_file
from local_tier.producers.snapshot import decode_snapshot, encode_snapshot

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from local_tier.files.file_system import FileSystem
    from local_tier.producers.producer_state import ProducerState


class ProducerSnapshots:
    """Which snapshots there are; a cache of the directory's listing that its owner keeps true."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self.directory = directory
        self._fs = fs
        self._offsets: list[int] = []
        self.reload()

    def reload(self) -> None:
        """Look at the directory anew."""
        found = (file_names.parse_segment_file(name) for name in self._fs.list_dir(self.directory))
        self._offsets = sorted(parsed[0] for parsed in found if parsed and parsed[1] == file_names.SNAPSHOT)

    @property
    def offsets(self) -> list[int]:
        """Of all snapshots, in order."""
        return list(self._offsets)

    @property
    def latest(self) -> int | None:
        """The offset of the newest."""
        return self._offsets[-1] if self._offsets else None

    def path(self, offset: int) -> Path:
        """Where the snapshot of that offset is, or would be."""
        return file_names.segment_file(self.directory, offset, file_names.SNAPSHOT)

    def write(self, offset: int, producers: Iterable[ProducerState], *, sync: bool) -> Path:
        """Write a snapshot; a torn one is found out by its checksum, so that it needs no detour."""
        path = self.path(offset)
        file = self._fs.open(path, create=True)
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
        """Make a snapshot durable that was written without; it may be gone again."""
        with suppress(FileNotFoundError):
            file = self._fs.open(self.path(offset))
            try:
                file.sync()
            finally:
                file.close()

    def read(self, offset: int) -> list[ProducerState]:
        """The producers of a snapshot; CorruptSnapshotError when it is not sound."""
        return decode_snapshot(read_file(self._fs, self.path(offset)) or b"", self.path(offset))

    def delete(self, offset: int) -> None:
        """Unlink a snapshot."""
        self._fs.unlink(self.path(offset), missing_ok=True)
        if offset in self._offsets:
            self._offsets.remove(offset)

    def mark_deleted(self, offset: int) -> Path | None:
        """Rename a snapshot so that it is no longer one; the path to unlink later."""
        if offset not in self._offsets:
            return None
        self._offsets.remove(offset)
        target = file_names.with_suffix(self.path(offset), file_names.DELETED)
        with suppress(FileNotFoundError):
            self._fs.rename(self.path(offset), target)
            return target
        return None

    def delete_strays(self, base_offsets: Collection[int]) -> None:
        """Delete snapshots that belong to no segment, except the newest of them if it is behind all segments.

        That one was written when the log was closed, and spares the next start a scan.
        """
        self.reload()
        strays = [offset for offset in self._offsets if offset not in base_offsets]
        if strays and base_offsets and strays[-1] >= max(base_offsets):
            strays.pop()
        for offset in strays:
            self.delete(offset)
