"""Objects as files of a local directory: the embedded default, and the store of small installations.

An object's name is its path below the root. Files exist completely or not at all
(`object_store.local.files`). Requests are counted as S3 would count them, so that reports of both stores can
be compared. Files of crashed writers stay below `.unfinished/`, are never listed, and are removed by
`sweep_unfinished`.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from core.errors import InvalidInputError, SiltstoneError
from object_store.accounting import Purpose, RequestCounts, RequestKind
from object_store.errors import (
    ObjectsNotDeletedError,
    ObjectTooShortError,
    StoreClosedError,
)
from object_store.interface import ObjectInfo, check_range
from object_store.local.durable_directories import DurableDirectories
from object_store.local.files import UnfinishedFile, changing, prune_empty, reading, write_durably
from object_store.local.page_cache import WrittenFiles
from object_store.local.streams import LocalStream, LocalUpload, read_fully
from object_store.names import RESERVED_COMPONENT, check_name, is_name, is_unfinished_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from core.ids import Ids
    from object_store.interface import Buffer

# S3 takes so many names in one request; counted alike here
_DELETED_AT_ONCE = 1000
# Names per LIST request of S3; counted the same way here
_LIST_PAGE = 1000


class LocalStore:
    """Objects below `root`, an absolute path that is created with the first object. Thread-safe."""

    def __init__(self, root: Path, ids: Ids) -> None:
        if not root.is_absolute():
            raise InvalidInputError(f"the root {str(root)!r} of a local store is not absolute")
        self._root = root
        self._ids = ids
        self._counts = RequestCounts()
        self._written = WrittenFiles()
        self._directories = DurableDirectories(root)
        self._closed = False

    @property
    def url(self) -> str:
        """`file:///…`."""
        return self._root.as_uri()

    @property
    def counts(self) -> RequestCounts:
        """Counts of the requests to this store."""
        return self._counts

    def put(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        """Write a file, replacing an existing one."""
        return self._write(name, body, purpose, replace=True)

    def create(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        """Write a file unless one of that name exists."""
        return self._write(name, body, purpose, replace=False)

    def _write(self, name: str, body: Sequence[Buffer], purpose: Purpose, *, replace: bool) -> int:
        self._start(name)
        with (
            self._counted(RequestKind.PUT, purpose),
            changing(f"writing {name!r}", self._root),
        ):
            size = write_durably(self._unfinished(), name, body, replace=replace)
        self._counts.record(RequestKind.PUT, purpose, bytes_out=size)
        if purpose is Purpose.INGEST:
            self._written.add(self._root / name, size)
        return size

    def read_range(self, name: str, position: int, length: int, *, purpose: Purpose) -> bytearray:
        """Return exactly `length` bytes from `position`."""
        if position < 0 or length < 0:
            raise InvalidInputError(f"range {position}+{length} of {name!r} is negative")
        self._start(name)
        if length == 0:
            return bytearray()
        with self._counted(RequestKind.GET, purpose), self._reading(name) as descriptor:
            size = os.fstat(descriptor).st_size
            if position + length > size:
                raise ObjectTooShortError(
                    f"{name!r} in {self._root} has {size} bytes, too few for {length} from {position}"
                )
            data = read_fully(descriptor, position, length)
        self._counts.record(RequestKind.GET, purpose, bytes_in=len(data))
        return data

    def read_tail(self, name: str, length: int, *, purpose: Purpose) -> tuple[bytearray, int]:
        """Return the last min(length, size) bytes, and the size."""
        if length < 1:
            raise InvalidInputError(f"a tail of {length} bytes of {name!r} is empty")
        self._start(name)
        with self._counted(RequestKind.GET, purpose), self._reading(name) as descriptor:
            size = os.fstat(descriptor).st_size
            length = min(length, size)
            data = read_fully(descriptor, size - length, length)
        self._counts.record(RequestKind.GET, purpose, bytes_in=len(data))
        return data, size

    def open_stream(
        self, name: str, position: int = 0, end: int | None = None, *, purpose: Purpose
    ) -> LocalStream:
        """Return a stream from `position` up to `end`; the file is opened at the first read."""
        check_range(name, position, end)
        self._start(name)
        return LocalStream(self._root, name, (position, end), self._counts, purpose)

    def start_upload(self, name: str, *, purpose: Purpose) -> LocalUpload:
        """Start a large object; the file is created with the first bytes."""
        self._start(name)
        return LocalUpload(self._root, self._unfinished, name, self._counts, purpose)

    def list(self, prefix: str, *, purpose: Purpose) -> Iterator[ObjectInfo]:
        """Yield objects below a prefix in name order; one directory of each level is in memory at a time."""
        self._require_open()
        return self._list(prefix, purpose)

    def _list(self, prefix: str, purpose: Purpose) -> Iterator[ObjectInfo]:
        self._counts.record(RequestKind.LIST, purpose, requests=1)
        listed = 0
        with changing(f"listing {prefix!r}", self._root):
            for info in self._walk("", prefix):
                if listed and listed % _LIST_PAGE == 0:
                    self._counts.record(RequestKind.LIST, purpose, requests=1)
                listed += 1
                yield info

    def _walk(self, directory: str, prefix: str) -> Iterator[ObjectInfo]:
        """Yield everything below `directory` ("" or ending in a slash) that starts with `prefix`, sorted."""
        for name in self._children(directory):
            if name.endswith("/"):
                if name.startswith(prefix) or prefix.startswith(name):
                    yield from self._walk(name, prefix)
            elif name.startswith(prefix) and is_name(name):
                with suppress(FileNotFoundError):  # deleted in the meantime
                    status = (self._root / name).lstat()
                    yield ObjectInfo(name, status.st_size, status.st_mtime_ns // 1_000_000)

    def _children(self, directory: str) -> Sequence[str]:
        """Return files, and directories with a final slash, in the order of the names that they lead to."""
        try:
            with os.scandir(self._root / directory) as entries:
                return sorted(
                    f"{directory}{entry.name}{'/' if entry.is_dir(follow_symlinks=False) else ''}"
                    for entry in entries
                    if (directory or entry.name != RESERVED_COMPONENT)
                    and (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False))
                )
        except FileNotFoundError:  # pruned in the meantime, or never written
            return []

    def delete(self, names: Sequence[str], *, purpose: Purpose) -> None:
        """Remove files, and directories that become empty."""
        self._require_open()
        for name in names:
            check_name(name)
        failures: dict[str, str] = {}
        for start in range(0, len(names), _DELETED_AT_ONCE):
            batch = names[start : start + _DELETED_AT_ONCE]
            failed = {name: reason for name in batch if (reason := self._delete(name))}
            self._counts.record(RequestKind.DELETE, purpose, requests=1, errors=int(bool(failed)))
            failures.update(failed)
        if failures:
            raise ObjectsNotDeletedError(self.url, failures)

    def _delete(self, name: str) -> str | None:
        path = self._root / name
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None  # no such object
        except OSError as error:
            return error.strerror or str(error)
        prune_empty(self._root, path.parent)
        return None

    def sweep_unfinished(
        self, before_ms: int, *, purpose: Purpose, may_abort: Callable[[str, int], bool] | None = None
    ) -> int:
        """Remove files that a writer left before it could name them; without names, age alone decides."""
        del may_abort
        self._require_open()
        self._counts.record(RequestKind.LIST, purpose, requests=1)
        swept = 0
        with changing("sweeping unfinished files", self._root), suppress(FileNotFoundError):
            for path in (self._root / RESERVED_COMPONENT).iterdir():
                if not is_unfinished_name(path.name):
                    continue
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime_ns // 1_000_000 < before_ms:
                        path.unlink()
                        self._counts.record(RequestKind.DELETE, purpose, requests=1)
                        swept += 1
        return swept

    def check(self) -> None:
        """Create the directory, and verify that it is writable."""
        self._require_open()
        probe = str(self._ids.new_uuid())
        with changing("a test write", self._root):
            write_durably(self._unfinished(), probe, [], replace=False)
            (self._root / probe).unlink()

    def close(self) -> None:
        """Reject further calls."""
        self._closed = True
        self._directories.clear()

    def _unfinished(self) -> UnfinishedFile:
        return UnfinishedFile(self._root, self._ids, self._directories)

    def _start(self, name: str) -> None:
        self._require_open()
        check_name(name)

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"the store {self.url} is closed")

    @contextmanager
    def _reading(self, name: str) -> Iterator[int]:
        with reading(name, self._root):
            descriptor = os.open(self._root / name, os.O_RDONLY)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    @contextmanager
    def _counted(self, kind: RequestKind, purpose: Purpose) -> Iterator[None]:
        self._counts.record(kind, purpose, requests=1)
        try:
            yield
        except SiltstoneError:
            self._counts.record(kind, purpose, errors=1)
            raise
