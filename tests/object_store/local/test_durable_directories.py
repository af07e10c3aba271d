"""Directories that a local store keeps open in order to sync them."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from object_store.local.durable_directories import DurableDirectories

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_directory_is_closed_even_during_interpreter_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last reference may go when the interpreter has already cleared its modules."""
    directories = DurableDirectories(tmp_path)
    directories.synchronize(tmp_path)
    assert _is_open(tmp_path)
    monkeypatch.setattr(os, "close", None)
    directories.clear()
    assert not _is_open(tmp_path)


def test_a_stale_directory_handle_is_reopened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = DurableDirectories(tmp_path)
    directories.synchronize(tmp_path)
    synced: list[int] = []

    def fail_with_estale(descriptor: int) -> os.stat_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fail_with_estale)
        patch.setattr(os, "fsync", synced.append)
        directories.synchronize(tmp_path)
    assert len(synced) == 1


def _is_open(directory: Path) -> bool:
    names = os.listdir("/proc/self/fd")  # noqa: PTH208 - not by a descriptor that pathlib would have to close
    return any(os.path.realpath(f"/proc/self/fd/{name}") == str(directory.resolve()) for name in names)
