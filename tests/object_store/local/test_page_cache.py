"""Pages of written files that a local store leaves in the page cache."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from core.clock import SystemClock
from core.ids import SystemIds
from object_store.accounting import Purpose
from object_store.local.page_cache import WrittenFiles
from object_store.local.store import LocalStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def dropped_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the files dropped from the page cache, in order."""
    sizes: list[int] = []

    def advise(descriptor: int, start: int, length: int, advice: int) -> None:
        assert (start, length, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        sizes.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    return sizes


def _write(directory: Path, size: int) -> Path:
    path = directory / str(size)
    path.write_bytes(bytes(size))
    return path


def test_the_oldest_files_are_dropped_above_the_limit(dropped_sizes: list[int], tmp_path: Path) -> None:
    """The newest files stay up to the limit; a file above the limit is dropped at once."""
    written = WrittenFiles(limit=100)
    for size in (40, 60):
        written.add(_write(tmp_path, size), size)
    assert dropped_sizes == []
    written.add(_write(tmp_path, 41), 41)
    assert dropped_sizes == [40, 60]
    written.add(_write(tmp_path, 101), 101)
    assert dropped_sizes == [40, 60, 41, 101]


def test_a_deleted_file_is_ignored(dropped_sizes: list[int], tmp_path: Path) -> None:
    """The same holds for a system that rejects the advice."""
    written = WrittenFiles(limit=10)
    path = _write(tmp_path, 11)
    path.unlink()
    written.add(path, 11)
    assert dropped_sizes == []


def test_the_number_of_remembered_files_is_bounded(dropped_sizes: list[int], tmp_path: Path) -> None:
    """The bound holds for files of any size."""
    written = WrittenFiles(limit=10_000)
    path = _write(tmp_path, 1)
    for _ in range(1025):
        written.add(path, 1)
    assert dropped_sizes == [1]


def test_a_store_drops_only_ingestion_files(dropped_sizes: list[int], tmp_path: Path) -> None:
    """A dropped file can still be read."""
    store = LocalStore(tmp_path / "objects", SystemIds(SystemClock()))
    size = 33 * 2**20
    body = [bytes(size)]
    for number in range(3):
        store.put(f"v1/other/{number}", body, purpose=Purpose.COMPACTION)
    assert dropped_sizes == []
    for number in range(2):
        store.put(f"v1/ingest/{number}", body, purpose=Purpose.INGEST)
    assert dropped_sizes == [size]
    assert store.read_range("v1/ingest/0", size - 5, 5, purpose=Purpose.FETCH) == bytes(5)
