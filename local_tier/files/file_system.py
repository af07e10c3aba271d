"""The interface to the disk: every access of the local tier goes through it.

A `FileSystem` opens files, changes directories and makes changes durable. It raises plain OSError; the log
decides what a failure means. Durability is that of POSIX:

- The bytes of a file are durable after `sync` of the file.
- The creation, rename or removal of a name is durable after `sync_dir` of its directory.

`RealFileSystem` only makes the system calls, and waits for file descriptors and memory maps. Tests wrap it to
stop, fail or lose data at a step. The name of a step follows from the operation and the kind of file, so
callers need no code for tests.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet

from local_tier.files.process_limits import process_limits

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatus:
    """Size and type of a file. `modified_ms` is in milliseconds since the Unix epoch."""

    size: int
    modified_ms: int
    is_directory: bool


class Mapping(Protocol):
    """The bytes of a file as shared memory.

    The file must not become shorter than a mapping that is still read: the kernel sends SIGBUS for such a
    read. Closing is safe while views exist; the memory is freed with the last view.
    """

    @property
    def view(self) -> memoryview:
        """The mapped bytes, for reading and writing in place."""
        ...

    def sync(self) -> None:
        """Make written bytes durable."""
        ...

    def close(self) -> None:
        """Release the memory."""
        ...


class OpenFile(Protocol):
    """A file that is read and written at positions. Several threads may read at once."""

    @property
    def path(self) -> Path:
        """The path at which the file was opened."""
        ...

    def size(self) -> int:
        """Return the length in bytes."""
        ...

    def read_into(self, buffer: Buffer, position: int) -> int:
        """Fill `buffer` from `position` on and return the number of bytes read.

        It is smaller than the buffer only at the end of the file.
        """
        ...

    def write(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`. After an OSError some of it may have been written."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size`, or extend it with zeros that take no disk space."""
        ...

    def allocate(self, size: int) -> None:
        """Extend the file to `size` with zeros that take disk space.

        Later writes to that range cannot fail for lack of space.
        """
        ...

    def sync(self) -> None:
        """Make the bytes and the length durable."""
        ...

    def map(self, size: int) -> Mapping:
        """Map the first `size` bytes as shared memory. The file must have them, and `size` must not be 0."""
        ...

    def close(self) -> None:
        """Close the file. Further calls do nothing."""
        ...


class FileLock(Protocol):
    """A lock that the kernel releases when its process ends."""

    def release(self) -> None:
        """Release the lock. Further calls do nothing."""
        ...


class FileSystem(Protocol):
    """The operations that the local tier needs of a disk."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OpenFile:
        """Open a file. With `create`, create it if it is missing."""
        ...

    def status(self, path: Path) -> FileStatus | None:
        """Return the status of a file or directory, or None if it does not exist."""
        ...

    def set_modified(self, path: Path, modified_ms: int) -> None:
        """Set the modification time of a file."""
        ...

    def attribute(self, path: Path, name: str) -> bytes | None:
        """Return an extended attribute of a file, or None.

        An attribute belongs to the file, not to its name: a file that replaces it does not have it.
        """
        ...

    def set_attribute(self, path: Path, name: str, value: bytes) -> None:
        """Set an extended attribute of a file. It may get lost, and some file systems have none."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Atomically rename a file or directory. A file with the new name is replaced."""
        ...

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        """Remove a file."""
        ...

    def make_dir(self, path: Path) -> None:
        """Create a directory and its parents. The directory may exist."""
        ...

    def remove_dir(self, path: Path) -> None:
        """Remove an empty directory."""
        ...

    def list_dir(self, path: Path) -> list[str]:
        """Return the sorted names in a directory."""
        ...

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable."""
        ...

    def lock(self, path: Path) -> FileLock | None:
        """Lock a file exclusively, creating it if needed. Return None if another process holds the lock."""
        ...


class RealMapping:
    """Memory that the kernel shares with a file."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._mmap = process_limits.run(lambda: mmap.mmap(descriptor, size))  # it has one of its own
        self._view = memoryview(self._mmap)
        _mappings.add(self)

    @property
    def view(self) -> memoryview:
        """The mapped bytes."""
        return self._view

    def sync(self) -> None:
        """Write changed pages to the disk and wait."""
        self._mmap.flush()

    def close(self) -> None:
        """Unmap the memory. If a view still exists, its last reader unmaps it."""
        _mappings.discard(self)
        self._view.release()
        try:
            self._mmap.close()
        except BufferError:  # a reader's array still refers to the memory
            return


_mappings: Final = WeakSet[RealMapping]()


def mapped_file_count() -> int:
    """Return the number of files that this process has mapped. Any thread may call."""
    return len(_mappings)


class RealOpenFile:
    """A file descriptor."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @property
    def path(self) -> Path:
        """The path at which the file was opened."""
        return self._path

    def size(self) -> int:
        """Return the length in bytes."""
        return os.fstat(self._descriptor).st_size

    def read_into(self, buffer: Buffer, position: int) -> int:
        """Fill `buffer` from `position` on, up to the end of the file."""
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
        """Cut or extend the file."""
        os.ftruncate(self._descriptor, size)

    def allocate(self, size: int) -> None:
        """Extend the file and allocate its blocks."""
        os.posix_fallocate(self._descriptor, 0, size)

    def sync(self) -> None:
        """Make the bytes and the length durable, but not the file's times."""
        os.fdatasync(self._descriptor)

    def map(self, size: int) -> RealMapping:
        """Map the first `size` bytes."""
        return RealMapping(self._descriptor, size)

    def close(self) -> None:
        """Close the descriptor once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealFileLock:
    """An flock and a record lock. Child processes do not inherit them: the descriptor is closed on exec."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Close the descriptor, which releases the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_WHOLE_FILE: Final = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""A struct flock: type, whence, start, length (0: to the end), process."""


class RealFileSystem:
    """The file system of the operating system. It has no state and may be shared."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealOpenFile:
        """Open a file for reads and writes at positions."""
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return RealOpenFile(path, process_limits.run(lambda: os.open(path, flags, 0o644)))

    def status(self, path: Path) -> FileStatus | None:
        """Return the result of stat, or None."""
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
        """Set the modification time."""
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def attribute(self, path: Path, name: str) -> bytes | None:
        """Return an attribute of the user namespace, or None."""
        try:
            return os.getxattr(path, f"user.{name}")
        except OSError as error:
            if error.errno in {errno.ENODATA, errno.ENOTSUP, errno.ENOENT}:
                return None
            raise

    def set_attribute(self, path: Path, name: str, value: bytes) -> None:
        """Set an attribute of the user namespace, if the file system has it."""
        try:
            os.setxattr(path, f"user.{name}", value)
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.EPERM, errno.ENOSPC}:
                raise

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing a file with the new name."""
        source.replace(target)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        """Remove a file."""
        path.unlink(missing_ok=missing_ok)

    def make_dir(self, path: Path) -> None:
        """Create a directory and its parents."""
        path.mkdir(parents=True, exist_ok=True)

    def remove_dir(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def list_dir(self, path: Path) -> list[str]:
        """Return the sorted names in a directory."""
        return process_limits.run(lambda: sorted(entry.name for entry in path.iterdir()))

    def sync_dir(self, path: Path) -> None:
        """Open the directory and fsync it."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = process_limits.run(lambda: os.open(path, flags))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> RealFileLock | None:
        """Take an flock and a record lock without waiting.

        Java locks files with record locks of the process. The record lock here conflicts with those, but
        belongs to the descriptor: closing another descriptor of the file in this process does not release it.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        except OSError as error:
            os.close(descriptor)
            if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
                return None
            raise
        return RealFileLock(descriptor)


TEMPORARY_SUFFIX = ".tmp"


def read_file(file_system: FileSystem, path: Path) -> bytes | None:
    """Return all bytes of a file, or None if it does not exist."""
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
    """Durably replace a file so that after a crash it has its old bytes or the new ones, never a mixture.

    As Kafka's `Utils.atomicMoveWithFallback`: write a temporary file next to it, sync it, rename it, and sync
    the directory.
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
    """Remove a directory and everything in it. Files that are already gone are no error."""
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
