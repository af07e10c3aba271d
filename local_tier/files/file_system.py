"""Every touch of the disk by the local tier goes through here, so that a test can break any one of them.

A `FileSystem` opens files, changes directories and makes changes durable. It raises plain `OSError`; what a
failure means for a log is decided by the log. Durability is POSIX's: the bytes of a file last once `sync` has
returned, and a name (of a file made, renamed or unlinked) once `sync_dir` of its directory has.

The real one adds nothing to the system calls. Tests wrap it to stop, fail or forget at a step; a step's name
follows from the operation and the kind of file, so that no caller carries names for tests.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatus:
    """What a directory tells of a file; `modified_ms` in milliseconds since the Unix epoch."""

    size: int
    modified_ms: int
    is_directory: bool


class Mapping(Protocol):
    """A file's bytes as shared memory.

    The file must not shrink below a mapping that somebody still reads: the kernel answers such a read with
    SIGBUS. Closing is safe while views are held; the memory goes with the last of them.
    """

    @property
    def view(self) -> memoryview:
        """The mapped bytes, read and written in place."""
        ...

    def sync(self) -> None:
        """Make what was written durable."""
        ...

    def close(self) -> None:
        """Let go of the memory."""
        ...


class OpenFile(Protocol):
    """A file that is read and written at positions; several threads may read at once."""

    @property
    def path(self) -> Path:
        """Where it was when it was opened."""
        ...

    def size(self) -> int:
        """Its length in bytes."""
        ...

    def read_into(self, buffer: Buffer, position: int) -> int:
        """Fill `buffer` from `position` on; fewer bytes than it holds only at the end of the file."""
        ...

    def write(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`; after an OSError, some of it may have been written."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file, or lengthen it with zeros that take no room."""
        ...

    def allocate(self, size: int) -> None:
        """Lengthen the file to `size` with zeros that take room, so that no later write runs out of it."""
        ...

    def sync(self) -> None:
        """Make its bytes and length durable."""
        ...

    def map(self, size: int) -> Mapping:
        """The first `size` bytes as shared memory; the file must have them. `size` must not be 0."""
        ...

    def close(self) -> None:
        """Let go of it; more than once is fine."""
        ...


class FileLock(Protocol):
    """A lock that the kernel takes back when its process ends."""

    def release(self) -> None:
        """Give it back; more than once is fine."""
        ...


class FileSystem(Protocol):
    """What the local tier asks of a disk."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OpenFile:
        """Open a file; with `create` it is made when it is not there."""
        ...

    def status(self, path: Path) -> FileStatus | None:
        """None when nothing is there."""
        ...

    def set_modified(self, path: Path, modified_ms: int) -> None:
        """Change when a file claims to have been written last."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Atomically give a file or directory another name; a file of that name is replaced."""
        ...

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        """Remove a file."""
        ...

    def make_dir(self, path: Path) -> None:
        """Make a directory with its parents; it may exist."""
        ...

    def remove_dir(self, path: Path) -> None:
        """Remove an empty directory."""
        ...

    def list_dir(self, path: Path) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def sync_dir(self, path: Path) -> None:
        """Make a directory's names durable."""
        ...

    def lock(self, path: Path) -> FileLock | None:
        """An exclusive lock on the file, made when it is not there; None when another holds it."""
        ...


class RealMapping:
    """Memory that the kernel shares with a file."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._mmap = mmap.mmap(descriptor, size)
        self._view = memoryview(self._mmap)

    @property
    def view(self) -> memoryview:
        """The mapped bytes."""
        return self._view

    def sync(self) -> None:
        """Hand changed pages to the disk and wait."""
        self._mmap.flush()

    def close(self) -> None:
        """Unmap, or leave that to the last reader that still has a view."""
        self._view.release()
        try:
            self._mmap.close()
        except BufferError:  # an array of a reader still refers to the memory
            return


class RealOpenFile:
    """A file descriptor."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @property
    def path(self) -> Path:
        """Where it was when it was opened."""
        return self._path

    def size(self) -> int:
        """Its length in bytes."""
        return os.fstat(self._descriptor).st_size

    def read_into(self, buffer: Buffer, position: int) -> int:
        """Fill `buffer` from `position` on, or up to the end of the file."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < view.nbytes:
            count = os.preadv(self._descriptor, (view[done:],), position + done)
            if not count:
                break
            done += count
        return done

    def write(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`."""
        view = memoryview(data).cast("B")
        done = 0
        while done < view.nbytes:
            done += os.pwrite(self._descriptor, view[done:], position + done)

    def truncate(self, size: int) -> None:
        """Cut or lengthen the file."""
        os.ftruncate(self._descriptor, size)

    def allocate(self, size: int) -> None:
        """Lengthen the file and take the room for it."""
        os.posix_fallocate(self._descriptor, 0, size)

    def sync(self) -> None:
        """Make bytes and length durable; times need not be."""
        os.fdatasync(self._descriptor)

    def map(self, size: int) -> RealMapping:
        """Share the first `size` bytes."""
        return RealMapping(self._descriptor, size)

    def close(self) -> None:
        """Close the descriptor once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealFileLock:
    """An flock, which children do not inherit: the descriptor is closed on exec."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Closing the descriptor gives the lock back."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealFileSystem:
    """The operating system's; it has no state and may be shared."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealOpenFile:
        """Open a file at positions."""
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return RealOpenFile(path, os.open(path, flags, 0o644))

    def status(self, path: Path) -> FileStatus | None:
        """What stat says."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        return FileStatus(
            size=found.st_size,
            modified_ms=found.st_mtime_ns // 1_000_000,
            is_directory=path.is_dir(),
        )

    def set_modified(self, path: Path, modified_ms: int) -> None:
        """Change the modification time."""
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def rename(self, source: Path, target: Path) -> None:
        """Rename, and replace."""
        source.replace(target)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        """Remove a file."""
        path.unlink(missing_ok=missing_ok)

    def make_dir(self, path: Path) -> None:
        """Make a directory with its parents."""
        path.mkdir(parents=True, exist_ok=True)

    def remove_dir(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def list_dir(self, path: Path) -> list[str]:
        """The names in a directory, sorted."""
        return sorted(entry.name for entry in path.iterdir())

    def sync_dir(self, path: Path) -> None:
        """Open the directory and fsync it."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> RealFileLock | None:
        """Take an flock without waiting."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
                return None
            raise
        return RealFileLock(descriptor)


TEMPORARY_SUFFIX = ".tmp"


def read_file(file_system: FileSystem, path: Path) -> bytes | None:
    """All bytes of a file; None when it is not there."""
    try:
        file = file_system.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        content = bytearray(file.size())
        return bytes(memoryview(content)[: file.read_into(content, 0)])
    finally:
        file.close()


def replace_file(file_system: FileSystem, path: Path, data: Buffer) -> None:
    """Durably replace a file so that after a crash it has its old bytes or its new ones, and never a mixture.

    Written beside it, synced, renamed, then the directory synced: Kafka's `Utils.atomicMoveWithFallback`.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    file = file_system.open(temporary, create=True)
    try:
        file.truncate(0)
        file.write(data, 0)
        file.sync()
    finally:
        file.close()
    file_system.rename(temporary, path)
    file_system.sync_dir(path.parent)


def remove_tree(file_system: FileSystem, path: Path) -> None:
    """Remove a directory with all that is in it; what is gone already is no error."""
    status = file_system.status(path)
    if status is None:
        return
    for name in file_system.list_dir(path):
        entry = path / name
        found = file_system.status(entry)
        if found is not None and found.is_directory:
            remove_tree(file_system, entry)
        else:
            file_system.unlink(entry, missing_ok=True)
    with suppress(FileNotFoundError):
        file_system.remove_dir(path)
