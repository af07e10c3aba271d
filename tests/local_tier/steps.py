"""A file system whose operations are named steps, at which tests stop or fail it."""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, NoReturn, Protocol

from typing_extensions import override

from local_tier.files.file_names import CLEANED, DELETED, SWAP, parse_partition_directory, parse_segment_file

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer

    from local_tier.files.file_system import FileLock, FileStatus, FileSystem, Mapping, OpenFile


def kind_of(path: Path) -> str:
    """Return the kind of a path without its identity: `.log.swap`, `<log>-delete`, or a name."""
    for passing in ("", DELETED, CLEANED, SWAP):
        file = parse_segment_file(path.name.removesuffix(passing))
        if file is not None:
            return f"{file[1]}{passing}"
    directory = parse_partition_directory(path.name)
    if directory is not None:
        return f"<log>{directory.state}"
    return path.name


class Faults(Protocol):
    """The behaviour at steps."""

    def before(self, step: str) -> None:
        """Handle the start of a step. May raise OSError or end the process."""
        ...

    def share(self, step: str, size: int) -> int:
        """Return how many bytes of a write succeed. If not all do, `cut` follows."""
        ...

    def cut(self, step: str) -> NoReturn:
        """End a write that was only partly made."""
        ...

    def after(self, step: str) -> None:
        """Handle the end of a step. May raise OSError or end the process."""
        ...


class NoFaults:
    """Counts the steps by name."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()

    def before(self, step: str) -> None:
        self.steps[step] += 1

    def share(self, step: str, size: int) -> int:
        self.steps[step] += 1
        return size

    def cut(self, step: str) -> NoReturn:
        raise AssertionError(step)

    def after(self, step: str) -> None:
        """Do nothing."""


class DiskError(NoFaults):
    """Fails steps that begin with `prefix` from the `nth` on, with the error `code`. Writes stop half-way."""

    def __init__(self, prefix: str, nth: int = 1, code: int = errno.EIO, *, once: bool = False) -> None:
        super().__init__()
        self._prefix = prefix
        self._left = nth
        self._once = once
        self._code = code
        self.failed = 0

    def _due(self, step: str) -> bool:
        if not step.startswith(self._prefix) or (self._once and self.failed):
            return False
        self._left -= 1
        due = self._left <= 0
        self.failed += due
        return due

    @override
    def before(self, step: str) -> None:
        super().before(step)
        if self._due(step):
            self.cut(step)

    @override
    def share(self, step: str, size: int) -> int:
        super().share(step, size)
        return size // 2 if self._due(step) else size

    @override
    def cut(self, step: str) -> NoReturn:
        raise OSError(self._code, f"{os.strerror(self._code)}, as the test asked for, at: {step}")


class Kill(NoFaults):
    """Ends this process with SIGKILL before, in the middle of (writes) or after the `nth` time of a step."""

    def __init__(self, step: str, nth: int, moment: str) -> None:
        super().__init__()
        self._step = step
        self._nth = nth
        self._moment = moment

    def _due(self, step: str, moment: str) -> bool:
        return moment == self._moment and step == self._step and self.steps[step] == self._nth

    @override
    def before(self, step: str) -> None:
        super().before(step)
        if self._due(step, "before"):
            self.cut(step)

    @override
    def share(self, step: str, size: int) -> int:
        self.before(step)
        return size // 2 if self._due(step, "middle") else size

    @override
    def after(self, step: str) -> None:
        if self._due(step, "after"):
            self.cut(step)

    @override
    def cut(self, step: str) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
        raise AssertionError(step)


class Switch:
    """Faults that tests exchange while files are open."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def before(self, step: str) -> None:
        self.faults.before(step)

    def share(self, step: str, size: int) -> int:
        return self.faults.share(step, size)

    def cut(self, step: str) -> NoReturn:
        self.faults.cut(step)

    def after(self, step: str) -> None:
        self.faults.after(step)


class SteppedMapping:
    def __init__(self, inner: Mapping, faults: Faults, kind: str) -> None:
        self._inner = inner
        self._faults = faults
        self._kind = kind

    @property
    def view(self) -> memoryview:
        return self._inner.view

    def sync(self) -> None:
        step = f"msync {self._kind}"
        self._faults.before(step)
        self._inner.sync()
        self._faults.after(step)

    def close(self) -> None:
        self._inner.close()


class SteppedFile:
    def __init__(self, inner: OpenFile, faults: Faults, kind: str) -> None:
        self._inner = inner
        self._faults = faults
        self._kind = kind

    @property
    def path(self) -> Path:
        return self._inner.path

    def size(self) -> int:
        return self._inner.size()

    def read_into(self, buffer: Buffer, position: int) -> int:
        self._faults.before(f"read {self._kind}")
        return self._inner.read_into(buffer, position)

    def write(self, data: Buffer, position: int) -> None:
        step = f"write {self._kind}"
        view = memoryview(data).cast("B")
        share = self._faults.share(step, view.nbytes)
        self._inner.write(view[:share], position)
        if share < view.nbytes:
            self._faults.cut(step)
        self._faults.after(step)

    def truncate(self, size: int) -> None:
        step = f"truncate {self._kind}"
        self._faults.before(step)
        self._inner.truncate(size)
        self._faults.after(step)

    def allocate(self, size: int) -> None:
        step = f"allocate {self._kind}"
        self._faults.before(step)
        self._inner.allocate(size)
        self._faults.after(step)

    def sync(self) -> None:
        step = f"fsync {self._kind}"
        self._faults.before(step)
        self._inner.sync()
        self._faults.after(step)

    def map(self, size: int) -> Mapping:
        return SteppedMapping(self._inner.map(size), self._faults, self._kind)

    def close(self) -> None:
        self._inner.close()


class SteppedFileSystem:
    """A file system with faults at steps like "write .log" or "rename .log.cleaned>.log.swap"."""

    def __init__(self, inner: FileSystem, faults: Faults) -> None:
        self._inner = inner
        self.faults = faults

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OpenFile:
        step = f"create {kind_of(path)}"
        made = create and self._inner.status(path) is None
        if made:
            self.faults.before(step)
        file = SteppedFile(
            self._inner.open(path, create=create, writable=writable), self.faults, kind_of(path)
        )
        if made:
            self.faults.after(step)
        return file

    def status(self, path: Path) -> FileStatus | None:
        return self._inner.status(path)

    def set_modified(self, path: Path, modified_ms: int) -> None:
        self._inner.set_modified(path, modified_ms)

    def attribute(self, path: Path, name: str) -> bytes | None:
        return self._inner.attribute(path, name)

    def set_attribute(self, path: Path, name: str, value: bytes) -> None:
        self._inner.set_attribute(path, name, value)

    def rename(self, source: Path, target: Path) -> None:
        step = f"rename {kind_of(source)}>{kind_of(target)}"
        self.faults.before(step)
        self._inner.rename(source, target)
        self.faults.after(step)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        step = f"unlink {kind_of(path)}"
        self.faults.before(step)
        self._inner.unlink(path, missing_ok=missing_ok)
        self.faults.after(step)

    def make_dir(self, path: Path) -> None:
        step = f"mkdir {kind_of(path)}"
        self.faults.before(step)
        self._inner.make_dir(path)
        self.faults.after(step)

    def remove_dir(self, path: Path) -> None:
        step = f"rmdir {kind_of(path)}"
        self.faults.before(step)
        self._inner.remove_dir(path)
        self.faults.after(step)

    def list_dir(self, path: Path) -> list[str]:
        self.faults.before(f"list {kind_of(path)}")
        return self._inner.list_dir(path)

    def sync_dir(self, path: Path) -> None:
        step = f"fsync {kind_of(path)}"
        self.faults.before(step)
        self._inner.sync_dir(path)
        self.faults.after(step)

    def lock(self, path: Path) -> FileLock | None:
        return self._inner.lock(path)
