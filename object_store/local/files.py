"""Files that are either there in full or not at all, and stay there through a crash of the machine.

Every new file is written below `.unfinished/` in the same file system, synchronised, and only then given its
name, by `rename` (replaces) or by `link` (fails when the name is taken, also among racers). Afterwards its
directory is synchronised, and unless that was done before (`durable_directories`) all directories above, up
to the root: another writer may have made them a moment ago without having come so far.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from core.errors import InvalidInputError, SiltstoneError
from object_store.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreUnavailableError,
    UploadLostError,
)
from object_store.local.durable_directories import synchronise_directory
from object_store.names import RESERVED_COMPONENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from core.ids import Ids
    from object_store.interface import Buffer
    from object_store.local.durable_directories import DurableDirectories

# writev takes no more buffers at once (IOV_MAX of Linux and macOS)
_BUFFERS_AT_ONCE = 1024
# A directory may be pruned between its making and its use; each try loses to one concurrent deletion.
_PLACING_TRIES = 64

_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_UNNAMEABLE = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ENOTEMPTY})


def _error_for(error: OSError, doing: str, root: Path) -> SiltstoneError:
    reason = f"{doing} failed in {root}: {error.strerror or error}"
    if error.errno in _FORBIDDEN:
        return StoreAccessError(reason, remedy=f"let this user read and write below {root}")
    if error.errno in {errno.ENOTDIR, errno.EEXIST}:
        return StoreAccessError(reason, remedy="choose a directory for the objects")
    if error.errno in _FULL:
        return StoreUnavailableError(reason, remedy="free space, then the same call works")
    return StoreUnavailableError(reason)


@contextmanager
def reading(name: str, root: Path) -> Iterator[None]:
    """Turn the operating system's errors into the store's, for calls that need an object."""
    try:
        yield
    except OSError as error:
        if error.errno in _ABSENT:
            raise ObjectNotFoundError(f"there is no object {name!r} in {root}") from error
        raise _error_for(error, f"reading {name!r}", root) from error


@contextmanager
def changing(doing: str, root: Path) -> Iterator[None]:
    """Turn the operating system's errors into the store's, for calls that write or delete."""
    try:
        yield
    except OSError as error:
        if error.errno in _UNNAMEABLE and root.is_dir():
            raise InvalidInputError(
                f"{doing} failed in {root}: {error.strerror}",
                remedy="an object's name cannot also be the beginning of another's path",
            ) from error
        raise _error_for(error, doing, root) from error


def write_fully(descriptor: int, body: Iterable[Buffer]) -> int:
    """Write all buffers in order without joining them; returns the bytes written."""
    buffers = [buffer for buffer in body if len(buffer)]
    return sum(
        _write_some(descriptor, buffers[start : start + _BUFFERS_AT_ONCE])
        for start in range(0, len(buffers), _BUFFERS_AT_ONCE)
    )


def _write_some(descriptor: int, buffers: Sequence[Buffer]) -> int:
    """As `write_fully`, of no more buffers than go at once, none of them empty."""
    size = sum([memoryview(buffer).nbytes for buffer in buffers])
    written = os.writev(descriptor, buffers)
    if written < size:
        pending = deque(memoryview(buffer).cast("B") for buffer in buffers)
        while _drop(pending, written):
            written = os.writev(descriptor, list(pending))
            if written == 0:
                raise OSError(errno.EIO, "the file takes no more bytes")
    return size


def _drop(pending: deque[memoryview], count: int) -> bool:
    """Take the first `count` bytes off; whether anything is left."""
    while count:
        first = pending[0]
        if count < len(first):
            pending[0] = first[count:]
            break
        count -= len(first)
        pending.popleft()
    return bool(pending)


def _make_durably(directory: Path) -> None:
    """Make a directory and those above it where they are missing, each synchronised into its parent."""
    if directory.is_dir():
        return
    _make_durably(directory.parent)
    directory.mkdir(exist_ok=True)
    synchronise_directory(directory.parent)


class UnfinishedFile:
    """A file without a name in the store: write to `descriptor`, then `publish` or `discard` it."""

    def __init__(self, root: Path, ids: Ids, directories: DurableDirectories) -> None:
        self._root = root
        self._directories = directories
        self._is_published = False
        directory = root / RESERVED_COMPONENT
        self._path = directory / str(ids.new_uuid())
        _make_durably(directory)
        self.descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def publish(self, name: str, *, replace: bool) -> None:
        """Give the file its name, durably; raises `ObjectExistsError` unless it may replace."""
        os.fsync(self.descriptor)
        self._close()
        target = self._root / name
        self._place_in_time(target, replace=replace)
        self._directories.synchronise(target.parent)
        if not replace:
            self._path.unlink(missing_ok=True)
        self._is_published = True

    def _place_in_time(self, target: Path, *, replace: bool) -> None:
        """Make the directories and place the file before a concurrent deletion prunes them again."""
        for remaining in reversed(range(_PLACING_TRIES)):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                self._place(target, replace=replace)
            except (FileNotFoundError, FileExistsError) as error:
                # It existed, as mkdir was told, and did not any more when mkdir looked what it is.
                if not self._path.exists():
                    raise UploadLostError(
                        f"what was written for {target} was swept away as unfinished"
                    ) from error
                if not remaining:
                    raise
            else:
                return

    def _place(self, target: Path, *, replace: bool) -> None:
        if replace:
            self._path.replace(target)
            return
        try:
            os.link(self._path, target)
        except FileExistsError as error:
            name = target.relative_to(self._root).as_posix()
            raise ObjectExistsError(f"{name!r} exists in {self._root}") from error

    def discard(self) -> None:
        """Drop the file; does nothing after `publish`, and never fails: a sweep finds what stays."""
        self._close()
        if not self._is_published:
            with suppress(OSError):
                self._path.unlink()

    def _close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def write_durably(file: UnfinishedFile, name: str, body: Iterable[Buffer], *, replace: bool) -> int:
    """Write a whole object into a new file and give it its name; returns its size."""
    try:
        size = write_fully(file.descriptor, body)
        file.publish(name, replace=replace)
    finally:
        file.discard()
    return size


def prune_empty(root: Path, directory: Path) -> None:
    """Remove directories that became empty, upwards, without touching the root.

    `rmdir` itself refuses a directory that a concurrent writer has filled; one that it was about to fill
    comes back by that writer's next try.
    """
    while directory != root:
        try:
            directory.rmdir()
        except OSError:
            return
        directory = directory.parent
