"""Real files that are never synced, for faster tests without power loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from local_tier.files.file_system import RealFileSystem, RealMapping, RealOpenFile

if TYPE_CHECKING:
    from pathlib import Path


class _Mapping(RealMapping):
    @override
    def sync(self) -> None:
        """Do nothing."""


class _File(RealOpenFile):
    @override
    def sync(self) -> None:
        """Do nothing."""

    @override
    def map(self, size: int) -> _Mapping:
        return _Mapping(self._descriptor, size)


class UnsyncedFileSystem(RealFileSystem):
    @override
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> _File:
        opened = super().open(path, create=create, writable=writable)
        file = _File(path, opened._descriptor)
        opened._descriptor = -1
        return file

    @override
    def sync_dir(self, path: Path) -> None:
        """Do nothing."""
