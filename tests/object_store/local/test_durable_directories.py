"""Directories that are kept open, and what becomes of them."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from object_store.local.durable_directories import DurableDirectories

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_directory_is_closed_also_when_the_interpreter_has_let_go_of_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does at its end, where the last reference may go only then."""
    directories = DurableDirectories(tmp_path)
    directories.synchronize(tmp_path)
    assert _is_open(tmp_path)
    monkeypatch.setattr(os, "close", None)
    directories.clear()
    assert not _is_open(tmp_path)


def test_a_directory_that_a_shared_file_system_has_lost_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = DurableDirectories(tmp_path)
    directories.synchronize(tmp_path)
    synchronised: list[int] = []

    def lost(descriptor: int) -> os.stat_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", lost)
        patch.setattr(os, "fsync", synchronised.append)
        directories.synchronize(tmp_path)
    assert len(synchronised) == 1


def _is_open(directory: Path) -> bool:
    names = os.listdir("/proc/self/fd")  # noqa: PTH208 - not by a descriptor that pathlib would have to close
    return any(os.path.realpath(f"/proc/self/fd/{name}") == str(directory.resolve()) for name in names)
