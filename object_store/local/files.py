"""Files that exist completely or not at all, and survive a crash of the machine.

Every new file is written below `.unfinished/` in the same file system, synchronized, and then named by
`rename` (replaces) or by `link` (fails if the name is taken, also among racers). Then its directory is
synchronized, and all directories above up to the root unless they are known to be durable
(`durable_directories`): another writer may have created them just before without synchronizing them yet.
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
from object_store.local.durable_directories import synchronize_directory
from object_store.names import RESERVED_COMPONENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from core.ids import Ids
    from object_store.interface import Buffer
    from object_store.local.durable_directories import DurableDirectories

# IOV_MAX of Linux and macOS: the most buffers of one writev
_MAX_BUFFERS = 1024
# A concurrent deletion may prune a directory between its creation and its use; each try allows for one.
_LINK_TRIES = 64

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
        return StoreUnavailableError(reason, remedy="free some space, then repeat the call")
    return StoreUnavailableError(reason)


@contextmanager
def reading(name: str, root: Path) -> Iterator[None]:
    """Translate errors of the operating system for calls that need an existing object."""
    try:
        yield
    except OSError as error:
        if error.errno in _ABSENT:
            raise ObjectNotFoundError(f"there is no object {name!r} in {root}") from error
        raise _error_for(error, f"reading {name!r}", root) from error


@contextmanager
def changing(doing: str, root: Path) -> Iterator[None]:
    """Translate errors of the operating system for calls that write or delete."""
    try:
        yield
    except OSError as error:
        if error.errno in _UNNAMEABLE and root.is_dir():
            raise InvalidInputError(
                f"{doing} failed in {root}: {error.strerror}",
                remedy="an object's name cannot be a directory of another object's path",
            ) from error
        raise _error_for(error, doing, root) from error


def write_fully(descriptor: int, body: Iterable[Buffer]) -> int:
    """Write all buffers in order without joining them; return the number of bytes."""
    buffers = [buffer for buffer in body if len(buffer)]
    return sum(
        _write_some(descriptor, buffers[start : start + _MAX_BUFFERS])
        for start in range(0, len(buffers), _MAX_BUFFERS)
    )


def _write_some(descriptor: int, buffers: Sequence[Buffer]) -> int:
    """Write at most as many non-empty buffers as one system call takes."""
    size = sum([memoryview(buffer).nbytes for buffer in buffers])
    written = os.writev(descriptor, buffers)
    if written < size:
        pending = deque(memoryview(buffer).cast("B") for buffer in buffers)
        while _drop(pending, written):
            written = os.writev(descriptor, list(pending))
            if written == 0:
                raise OSError(errno.EIO, "the file accepts no more bytes")
    return size


def _drop(pending: deque[memoryview], count: int) -> bool:
    """Remove the first `count` bytes; return True if any are left."""
    while count:
        first = pending[0]
        if count < len(first):
            pending[0] = first[count:]
            break
        count -= len(first)
        pending.popleft()
    return bool(pending)


def _make_durably(directory: Path) -> None:
    """Create a directory and its missing parents, each synchronized into its parent."""
    if directory.is_dir():
        return
    _make_durably(directory.parent)
    directory.mkdir(exist_ok=True)
    synchronize_directory(directory.parent)


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
        """Give the file its name, durably.

        Raise ObjectExistsError if the name is taken and `replace` is False.
        """
        os.fsync(self.descriptor)
        self._close()
        target = self._root / name
        self._link_with_retries(target, replace=replace)
        self._directories.synchronize(target.parent)
        if not replace:
            self._path.unlink(missing_ok=True)
        self._is_published = True

    def _link_with_retries(self, target: Path, *, replace: bool) -> None:
        """Create the directories and name the file before a concurrent deletion prunes them again."""
        for remaining in reversed(range(_LINK_TRIES)):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                self._link(target, replace=replace)
            except (FileNotFoundError, FileExistsError) as error:
                # mkdir found the directory, and it was gone when mkdir checked its type.
                if not self._path.exists():
                    raise UploadLostError(
                        f"what was written for {target} was swept away as unfinished"
                    ) from error
                if not remaining:
                    raise
            else:
                return

    def _link(self, target: Path, *, replace: bool) -> None:
        if replace:
            self._path.replace(target)
            return
        try:
            os.link(self._path, target)
        except FileExistsError as error:
            name = target.relative_to(self._root).as_posix()
            raise ObjectExistsError(f"{name!r} exists in {self._root}") from error

    def discard(self) -> None:
        """Drop the file. Does nothing after `publish` and never fails; a sweep removes what remains."""
        self._close()
        if not self._is_published:
            with suppress(OSError):
                self._path.unlink()

    def _close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def write_durably(file: UnfinishedFile, name: str, body: Iterable[Buffer], *, replace: bool) -> int:
    """Write a complete object into a new file and name it; return its size."""
    try:
        size = write_fully(file.descriptor, body)
        file.publish(name, replace=replace)
    finally:
        file.discard()
    return size


def prune_empty(root: Path, directory: Path) -> None:
    """Remove directories that became empty, upwards, but not the root.

    `rmdir` refuses a directory that a concurrent writer has filled. If it removes one that a writer is about
    to fill, that writer creates it again in its next attempt.
    """
    while directory != root:
        try:
            directory.rmdir()
        except OSError:
            return
        directory = directory.parent
