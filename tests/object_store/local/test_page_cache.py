"""What a local store leaves in the page cache of the files that it has written."""

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
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of files that left the page cache, in that order."""
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


def test_the_oldest_leave_once_there_is_too_much(left: list[int], tmp_path: Path) -> None:
    """The newest files stay up to the limit, and one that is larger than that leaves at once."""
    written = WrittenFiles(limit=100)
    for size in (40, 60):
        written.add(_write(tmp_path, size), size)
    assert left == []
    written.add(_write(tmp_path, 41), 41)
    assert left == [40, 60]
    written.add(_write(tmp_path, 101), 101)
    assert left == [40, 60, 41, 101]


def test_a_file_that_is_gone_is_no_error(left: list[int], tmp_path: Path) -> None:
    """Advice about a deleted object, or a system that refuses it, disturbs nobody."""
    written = WrittenFiles(limit=10)
    path = _write(tmp_path, 11)
    path.unlink()
    written.add(path, 11)
    assert left == []


def test_many_small_files_are_forgotten(left: list[int], tmp_path: Path) -> None:
    """What is remembered is bounded however small the files are."""
    written = WrittenFiles(limit=10_000)
    path = _write(tmp_path, 1)
    for _ in range(1025):
        written.add(path, 1)
    assert left == [1]


def test_a_store_counts_what_agents_write(left: list[int], tmp_path: Path) -> None:
    """An ingestion file leaves, and is still there to be read; what others write stays as it is."""
    store = LocalStore(tmp_path / "objects", SystemIds(SystemClock()))
    size = 33 * 2**20
    body = [bytes(size)]
    for number in range(3):
        store.put(f"v1/other/{number}", body, purpose=Purpose.COMPACTION)
    assert left == []
    for number in range(2):
        store.put(f"v1/ingest/{number}", body, purpose=Purpose.INGEST)
    assert left == [size]
    assert store.read_range("v1/ingest/0", size - 5, 5, purpose=Purpose.FETCH) == bytes(5)
