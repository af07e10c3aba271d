"""Behaviour of the local store when the disk fails, and the files that it leaves."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from core.clock import SystemClock
from core.errors import InvalidInputError, NotFoundError
from core.ids import SystemIds
from object_store.accounting import Purpose
from object_store.errors import (
    ObjectNotFoundError,
    ObjectsNotDeletedError,
    StoreAccessError,
    StoreUnavailableError,
)
from object_store.local.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.clock import ManualClock
    from core.errors import SiltstoneError

INGEST, GC = Purpose.INGEST, Purpose.GC


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def store(root: Path, clock: ManualClock) -> LocalStore:
    return LocalStore(root, SystemIds(clock))


def files_under(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def failing(number: int) -> object:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


FAILURES = [
    (errno.ENOSPC, StoreUnavailableError, "free some space"),
    (errno.EDQUOT, StoreUnavailableError, "free some space"),
    (errno.EIO, StoreUnavailableError, "Input/output error"),
    (errno.EMFILE, StoreUnavailableError, "Too many open files"),
    (errno.EACCES, StoreAccessError, "let this user read and write"),
    (errno.EROFS, StoreAccessError, "let this user read and write"),
]


@pytest.mark.parametrize("call", ["writev", "fsync", "open", "link", "mkdir"])
@pytest.mark.parametrize(("number", "expected", "text"), FAILURES)
def test_a_failed_write_names_its_cause_and_leaves_nothing(
    store: LocalStore,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    expected: type[SiltstoneError],
    text: str,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(number))
        with pytest.raises(expected, match=text) as caught:
            store.create("v1/x", [b"data"], purpose=INGEST)
    assert str(root) in str(caught.value)
    assert files_under(root) == []
    assert store.create("v1/x", [b"data"], purpose=INGEST) == 4


@pytest.mark.parametrize("call", ["writev", "fsync"])
def test_abort_removes_a_failed_upload(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    upload = store.start_upload("v1/x", purpose=INGEST)
    upload.write(bytes(2 << 20))
    upload.write(b"flushed at the end")
    monkeypatch.setattr(os, call, failing(errno.ENOSPC))
    with pytest.raises(StoreUnavailableError, match="v1/x"):
        upload.complete()
    upload.abort()
    assert files_under(root) == []


def test_short_writes_and_reads_are_continued(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    writev, preadv = os.writev, os.preadv

    def short_writev(descriptor: int, buffers: Sequence[memoryview]) -> int:
        flat = b"".join(buffers)
        return writev(descriptor, [flat[: max(1, len(flat) // 3)]])

    def short_preadv(descriptor: int, buffers: list[memoryview], position: int) -> int:
        return preadv(descriptor, [buffers[0][:7]], position)

    monkeypatch.setattr(os, "writev", short_writev)
    monkeypatch.setattr(os, "preadv", short_preadv)
    data = bytes(range(256)) * 3
    store.put("v1/x", [data[:100], b"", data[100:101], data[101:]], purpose=INGEST)
    assert store.read_range("v1/x", 0, len(data), purpose=Purpose.FETCH) == data
    assert store.read_range("v1/x", 99, 500, purpose=Purpose.FETCH) == data[99:599]


def test_a_disk_that_accepts_no_bytes_raises_an_error(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "writev", lambda *_: 0)
    with pytest.raises(StoreUnavailableError, match="accepts no more"):
        store.put("v1/x", [b"data"], purpose=INGEST)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_failed_read_is_retryable(store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    store.put("v1/x", [b"data"], purpose=INGEST)
    for call in ("preadv", "readv", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing(number))
            stream = store.open_stream("v1/x", purpose=Purpose.FETCH)
            with pytest.raises(StoreUnavailableError, match="v1/x"):  # noqa: PT012 - one of the two calls raises
                store.read_range("v1/x", 0, 4, purpose=Purpose.FETCH)
                stream.readinto(memoryview(bytearray(4)))
            stream.close()
    assert store.counts.snapshot().of(purpose=Purpose.FETCH).errors == 3


@pytest.fixture
def sync_steps(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The recorded syncs and renames, in order."""
    sync_steps: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def recording_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        sync_steps.append("file" if path.is_file() else f"directory {os.path.relpath(path, root)}")
        fsync(descriptor)

    def recording_rename(path: Path, target: Path) -> Path:
        sync_steps.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(Path, "replace", recording_rename)
    return sync_steps


_SYNC_OBJECT = ["file", "rename", "directory v1/a"]
_SYNC_PATH = ["directory v1", "directory ."]


def test_files_and_directories_are_synced_in_an_order_that_survives_a_crash(
    store: LocalStore, sync_steps: list[str]
) -> None:
    """The store syncs a new directory's parent, then the file, then every directory up to the root."""
    store.put("v1/a/x", [b"data"], purpose=INGEST)
    created = ["directory ..", "directory ."]  # the root and the directory of unfinished files
    assert sync_steps == [*created, *_SYNC_OBJECT, *_SYNC_PATH]


def test_the_path_of_a_directory_is_synced_once(
    store: LocalStore, root: Path, sync_steps: list[str], clock: ManualClock
) -> None:
    """Each store syncs it once, and again after another writer has pruned and created the directory."""
    store.put("v1/a/x", [b"data"], purpose=INGEST)
    sync_steps.clear()
    store.put("v1/a/y", [b"data"], purpose=INGEST)
    assert sync_steps == _SYNC_OBJECT

    sync_steps.clear()
    store.delete(["v1/a/x", "v1/a/y"], purpose=GC)
    (root / "v1/a").mkdir(parents=True)  # another writer has created it, but not synced it
    store.put("v1/a/x", [b"data"], purpose=INGEST)
    assert sync_steps == [*_SYNC_OBJECT, *_SYNC_PATH]

    other = LocalStore(root, SystemIds(clock))
    sync_steps.clear()
    other.put("v1/a/y", [b"data"], purpose=INGEST)
    store.put("v1/a/z", [b"data"], purpose=INGEST)
    assert sync_steps == [*_SYNC_OBJECT, *_SYNC_PATH, *_SYNC_OBJECT]


def test_a_store_keeps_few_directories_open_and_closes_them(store: LocalStore, root: Path) -> None:
    def open_under() -> int:
        links = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
        return sum(link.startswith(str(root)) for link in links)

    for number in range(40):
        store.put(f"v1/{number}/x", [b"data"], purpose=INGEST)
    assert open_under() == 16
    store.close()
    assert open_under() == 0


def test_a_directory_pruned_during_a_write_is_created_again(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link
    prunings_left = 5

    def link_after_pruning(source: Path, target: Path) -> None:
        nonlocal prunings_left
        if prunings_left:
            prunings_left -= 1
            (root / "v1/a").rmdir()
            (root / "v1").rmdir()
        link(source, target)

    monkeypatch.setattr(os, "link", link_after_pruning)
    store.create("v1/a/x", [b"data"], purpose=INGEST)
    assert files_under(root) == ["v1/a/x"]


def test_a_directory_pruned_during_its_creation_is_created_again(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer creates it, so that mkdir fails, and a deletion prunes it before mkdir checks it."""
    is_dir, pruned = Path.is_dir, root / "v1" / "a"

    def is_dir_after_pruning(path: Path) -> bool:
        if path == pruned and pruned.exists():
            pruned.rmdir()
        return is_dir(path)

    store.put("v1/b", [b""], purpose=INGEST)
    pruned.mkdir()
    monkeypatch.setattr(Path, "is_dir", is_dir_after_pruning)

    assert store.create("v1/a/x", [b"data"], purpose=INGEST) == 4


def test_delete_prunes_empty_directories_but_never_the_root(store: LocalStore, root: Path) -> None:
    store.put("v1/a/b/x", [b"1"], purpose=INGEST)
    store.put("v1/c/x", [b"1"], purpose=INGEST)
    store.delete(["v1/a/b/x"], purpose=GC)
    assert sorted(path.name for path in (root / "v1").iterdir()) == ["c"]
    store.delete(["v1/c/x"], purpose=GC)
    assert not (root / "v1").exists()
    assert root.exists()


def test_delete_removes_the_rest_before_it_reports_failures(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def unlink_except_b(path: Path, *, missing_ok: bool = False) -> None:
        if path.name == "b":
            raise PermissionError(errno.EACCES, "Permission denied")
        unlink(path, missing_ok=missing_ok)

    for name in "abc":
        store.put(f"v1/{name}", [b"1"], purpose=INGEST)
    monkeypatch.setattr(Path, "unlink", unlink_except_b)
    with pytest.raises(ObjectsNotDeletedError) as caught:
        store.delete(["v1/a", "v1/b", "v1/c"], purpose=GC)
    assert caught.value.failures == {"v1/b": "Permission denied"}
    assert files_under(root) == ["v1/b"]


def test_only_old_files_are_swept(store: LocalStore, root: Path) -> None:
    now_ms = SystemClock().now_ms()
    old = store.start_upload("v1/old", purpose=INGEST)
    old.write(bytes(2 << 20))
    [path] = (root / ".unfinished").iterdir()
    os.utime(path, ns=((now_ms - 10_000) * 1_000_000,) * 2)
    new = store.start_upload("v1/new", purpose=INGEST)
    new.write(bytes(2 << 20))
    assert store.sweep_unfinished(now_ms - 5_000, purpose=GC) == 1
    assert not path.exists()
    new.complete()
    old.abort()
    assert files_under(root) == ["v1/new"]


def test_foreign_files_are_not_swept(store: LocalStore, root: Path) -> None:
    (root / ".unfinished").mkdir(parents=True)
    (root / ".unfinished" / "notes.txt").touch()
    (root / ".unfinished" / str(UUID(int=1))).touch()
    assert store.sweep_unfinished(1 << 50, purpose=GC) == 1
    assert [path.name for path in (root / ".unfinished").iterdir()] == ["notes.txt"]


def test_sweeping_a_store_without_files_removes_nothing(store: LocalStore) -> None:
    assert store.sweep_unfinished(1 << 50, purpose=GC) == 0


def test_an_object_cannot_be_a_directory_of_another(store: LocalStore) -> None:
    store.put("v1/x", [b"1"], purpose=INGEST)
    store.put("v1/d/x", [b"1"], purpose=INGEST)
    for name in ("v1/x/y", "v1/d"):
        with pytest.raises(InvalidInputError, match=name) as caught:
            store.put(name, [b"2"], purpose=INGEST)
        assert not isinstance(caught.value, NotFoundError | StoreAccessError)


def test_foreign_files_are_not_listed(store: LocalStore, root: Path, tmp_path: Path) -> None:
    store.put("v1/x", [b"1"], purpose=INGEST)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    (root / "v1" / "link").symlink_to(outside)
    (root / "v1" / "file-link").symlink_to(outside / "secret")
    (root / "v1" / "line\nbreak").write_text("x")
    (root / b"v1/\xff".decode("utf-8", "surrogateescape")).write_text("x")
    os.mkfifo(root / "v1" / "pipe")
    assert [info.name for info in store.list("", purpose=GC)] == ["v1/x"]


def test_a_listing_continues_after_concurrent_deletes(store: LocalStore) -> None:
    for name in ("v1/a/x", "v1/b/x", "v1/b/y", "v1/c/x"):
        store.put(name, [b"1"], purpose=INGEST)
    listing = store.list("", purpose=GC)
    assert next(listing).name == "v1/a/x"
    store.delete(["v1/b/x", "v1/b/y"], purpose=GC)
    assert [info.name for info in listing] == ["v1/c/x"]


def test_reads_create_no_directory(store: LocalStore, root: Path) -> None:
    with pytest.raises(ObjectNotFoundError):
        store.read_range("v1/x", 0, 1, purpose=Purpose.FETCH)
    assert list(store.list("", purpose=GC)) == []
    store.delete(["v1/x"], purpose=GC)
    assert not root.exists()


def test_check_creates_the_directory_and_leaves_it_empty(store: LocalStore, root: Path) -> None:
    store.check()
    assert files_under(root) == []


def test_check_reports_a_file_at_the_path_of_the_store(root: Path, clock: ManualClock) -> None:
    root.write_text("a file")
    with pytest.raises(StoreAccessError, match="directory"):
        LocalStore(root, SystemIds(clock)).check()
