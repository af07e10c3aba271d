"""Several disks: one file system per directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from local_tier.files.file_system import FileLock, FileStatus, FileSystem, OpenFile


class Disks:
    """Passes each path to the file system of its directory, or to the first one."""

    def __init__(self, disks: Mapping[Path, FileSystem]) -> None:
        self._disks = disks

    def _of(self, path: Path) -> FileSystem:
        found = [fs for root, fs in self._disks.items() if path.is_relative_to(root)]
        return found[0] if found else next(iter(self._disks.values()))

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OpenFile:
        return self._of(path).open(path, create=create, writable=writable)

    def status(self, path: Path) -> FileStatus | None:
        return self._of(path).status(path)

    def set_modified(self, path: Path, modified_ms: int) -> None:
        self._of(path).set_modified(path, modified_ms)

    def attribute(self, path: Path, name: str) -> bytes | None:
        return self._of(path).attribute(path, name)

    def set_attribute(self, path: Path, name: str, value: bytes) -> None:
        self._of(path).set_attribute(path, name, value)

    def rename(self, source: Path, target: Path) -> None:
        self._of(source).rename(source, target)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        self._of(path).unlink(path, missing_ok=missing_ok)

    def make_dir(self, path: Path) -> None:
        self._of(path).make_dir(path)

    def remove_dir(self, path: Path) -> None:
        self._of(path).remove_dir(path)

    def list_dir(self, path: Path) -> list[str]:
        return self._of(path).list_dir(path)

    def sync_dir(self, path: Path) -> None:
        self._of(path).sync_dir(path)

    def lock(self, path: Path) -> FileLock | None:
        return self._of(path).lock(path)
