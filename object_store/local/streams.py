"""Streams and uploads of large local objects."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from core.errors import SiltstoneError
from object_store.accounting import RequestCounts, RequestKind
from object_store.errors import ObjectTooShortError, StoreClosedError
from object_store.local.files import changing, reading, write_fully

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from object_store.accounting import Purpose
    from object_store.interface import Buffer
    from object_store.local.files import UnfinishedFile

# Small writes are buffered up to this size, so that a header of a few bytes costs no system call.
_BUFFER_BYTES = 1 << 20


def read_fully(descriptor: int, position: int, length: int) -> bytearray:
    """Return exactly `length` bytes from `position`; the caller knows that they exist."""
    data = bytearray(length)
    target = memoryview(data)
    done = 0
    while done < length:
        count = os.preadv(descriptor, [target[done:]], position + done)
        if count == 0:
            raise ObjectTooShortError(
                f"a file was truncated to {position + done} bytes while {position + length} were read"
            )
        done += count
    return data


class LocalStream:
    """A `ForwardStream` over one file, opened at the first read; for one thread at a time."""

    def __init__(
        self,
        root: Path,
        name: str,
        byte_range: tuple[int, int | None],
        counts: RequestCounts,
        purpose: Purpose,
    ) -> None:
        """`byte_range` is start and end; an end of None is the file's end."""
        self._root = root
        self._name = name
        self._position, self._end = byte_range
        self._counts = counts
        self._purpose = purpose
        self._descriptor = -1
        self._closed = False

    @property
    def resumes(self) -> int:
        """Always 0: a local file does not break."""
        return 0

    def readinto(self, target: memoryview) -> int:
        """Fill up to len(target) bytes; return 0 only at the end of the range."""
        if self._closed:
            raise StoreClosedError(f"the stream over {self._name!r} is closed")
        if not len(target):
            return 0
        try:
            with reading(self._name, self._root):
                if self._descriptor < 0:
                    self._open()
                count = os.readv(self._descriptor, [target[: self._remaining(len(target))]])
        except SiltstoneError:
            self._counts.record(RequestKind.GET, self._purpose, errors=1)
            raise
        self._position += count
        self._counts.record(RequestKind.GET, self._purpose, bytes_in=count)
        return count

    def _remaining(self, limit: int) -> int:
        return limit if self._end is None else min(limit, self._end - self._position)

    def _open(self) -> None:
        self._counts.record(RequestKind.GET, self._purpose, requests=1)
        self._descriptor = os.open(self._root / self._name, os.O_RDONLY)
        size = os.fstat(self._descriptor).st_size
        if max(self._position, self._end or 0) > size:
            raise ObjectTooShortError(
                f"{self._name!r} in {self._root} has {size} bytes, but the range starts at {self._position}"
                + (f" and ends at {self._end}" if self._end is not None else "")
            )
        os.lseek(self._descriptor, self._position, os.SEEK_SET)

    def close(self) -> None:
        """Close the file."""
        self._closed = True
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LocalUpload:
    """An `Upload` into an unfinished file that is named at `complete`; for one thread at a time."""

    def __init__(
        self,
        root: Path,
        begin: Callable[[], UnfinishedFile],
        name: str,
        counts: RequestCounts,
        purpose: Purpose,
    ) -> None:
        self._root = root
        self._start = begin
        self._name = name
        self._counts = counts
        self._purpose = purpose
        self._file: UnfinishedFile | None = None
        self._buffer = bytearray()
        self._size = 0
        self._ended = False

    def write(self, data: Buffer) -> None:
        """Take bytes; they reach the file in large pieces."""
        self._require_open()
        view = memoryview(data).cast("B")
        self._size += len(view)
        if len(self._buffer) + len(view) < _BUFFER_BYTES:
            self._buffer += view
            return
        with changing(f"writing {self._name!r}", self._root):
            self._flush(view)

    def complete(self) -> int:
        """Name the file, durably."""
        self._require_open()
        with changing(f"writing {self._name!r}", self._root):
            self._flush(memoryview(b"")).publish(self._name, replace=True)
        self._ended = True
        self._counts.record(RequestKind.PUT, self._purpose, requests=1, bytes_out=self._size)
        return self._size

    def abort(self) -> None:
        """Drop the file."""
        self._ended = True
        self._buffer.clear()
        if self._file is not None:
            self._file.discard()

    def _flush(self, last: memoryview) -> UnfinishedFile:
        if self._file is None:
            self._file = self._start()
        write_fully(self._file.descriptor, (self._buffer, last))
        self._buffer.clear()
        return self._file

    def _require_open(self) -> None:
        if self._ended:
            raise StoreClosedError(f"the upload of {self._name!r} has ended")
