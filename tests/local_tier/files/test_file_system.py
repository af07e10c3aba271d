from __future__ import annotations

import errno
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from local_tier.files.file_system import FileSystem, RealFileSystem, read_file, remove_tree, replace_file
from tests.local_tier.crash.power_loss import PowerLossFileSystem
from tests.local_tier.steps import DiskError, NoFaults, SteppedFileSystem

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["real", "stepped", "forgetful"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    """Return each of the three file systems, which behave alike without faults."""
    if request.param == "stepped":
        return SteppedFileSystem(RealFileSystem(), NoFaults())
    return RealFileSystem() if request.param == "real" else PowerLossFileSystem(tmp_path)


def test_bytes_written_at_a_position_are_read_back(files: FileSystem, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.write(b"granite", 0)
    file.write(memoryview(b"slate"), 7)
    buffer = bytearray(20)

    count = file.read_into(buffer, 4)
    file.close()
    file.close()

    assert (count, bytes(buffer[:count]), file.path) == (8, b"iteslate", tmp_path / "a")


def test_a_file_is_extended_with_zeros_and_truncated(files: FileSystem, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.write(b"sand", 0)
    sizes = [file.size()]
    for change in (file.allocate, file.truncate):
        change(4096)
        sizes.append(file.size())
        file.truncate(4)
    file.sync()
    file.close()

    assert sizes == [4, 4096, 4096]
    assert read_file(files, tmp_path / "a") == b"sand"


def test_a_mapping_shares_its_bytes_with_the_file(files: FileSystem, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.truncate(16)
    mapping = file.map(16)

    mapping.view[4:8] = b"clay"
    mapping.sync()
    mapping.close()
    file.close()

    assert read_file(files, tmp_path / "a") == bytes(4) + b"clay" + bytes(8)


def test_an_array_over_a_closed_mapping_stays_readable(tmp_path: Path) -> None:
    """A reader that is slower than the close does not crash the process."""
    file = RealFileSystem().open(tmp_path / "a", create=True)
    file.write(b"12345678", 0)
    mapping = file.map(8)
    array = np.frombuffer(mapping.view, np.uint8)

    mapping.close()
    file.close()

    assert bytes(array) == b"12345678"


def test_directories_list_rename_and_unlink(files: FileSystem, tmp_path: Path) -> None:
    files.make_dir(tmp_path / "a" / "b")
    files.make_dir(tmp_path / "a" / "b")
    for name in ("2", "1"):
        files.open(tmp_path / "a" / name, create=True).close()
    files.rename(tmp_path / "a" / "1", tmp_path / "a" / "2")
    names = files.list_dir(tmp_path / "a")
    files.unlink(tmp_path / "a" / "2")
    files.unlink(tmp_path / "a" / "2", missing_ok=True)
    files.remove_dir(tmp_path / "a" / "b")
    files.sync_dir(tmp_path / "a")

    assert (names, files.list_dir(tmp_path / "a")) == (["2", "b"], [])
    with pytest.raises(FileNotFoundError):
        files.unlink(tmp_path / "a" / "2")


def test_the_status_of_a_file_has_its_size_and_modification_time(files: FileSystem, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.write(b"loam", 0)
    file.close()
    files.set_modified(tmp_path / "a", 1_700_000_000_123)
    status = files.status(tmp_path / "a")
    directory = files.status(tmp_path)

    assert status is not None
    assert directory is not None
    assert (status.size, status.modified_ms, status.is_directory) == (4, 1_700_000_000_123, False)
    assert directory.is_directory
    assert files.status(tmp_path / "b") is None


def test_a_lock_is_exclusive(files: FileSystem, tmp_path: Path) -> None:
    first = files.lock(tmp_path / ".lock")
    second = files.lock(tmp_path / ".lock")
    assert first is not None
    first.release()
    first.release()
    third = files.lock(tmp_path / ".lock")
    assert third is not None
    third.release()

    assert second is None


def test_a_lock_excludes_locks_of_other_programs(files: FileSystem, tmp_path: Path) -> None:
    """Java, and so Kafka, takes record locks. They are of no interest to an flock."""
    path = tmp_path / ".lock"
    program = (
        "import fcntl, sys\n"
        f"file = open({str(path)!r}, 'a')\n"
        "try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError: print('busy', flush=True)\n"
        "else: print('taken', flush=True); sys.stdin.read()\n"
    )

    def other() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    lock = files.lock(path)
    assert lock is not None
    assert files.lock(path) is None  # opens and closes the file in this process
    with other() as process:
        assert process.communicate()[0] == "busy\n"
    lock.release()
    with other() as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        assert files.lock(path) is None
        process.communicate()
    again = files.lock(path)
    assert again is not None
    again.release()


def test_opening_a_missing_file_does_not_create_it(files: FileSystem, tmp_path: Path) -> None:
    assert read_file(files, tmp_path / "a") is None
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "a")
    assert files.list_dir(tmp_path) == []


def test_a_directory_tree_is_removed(files: FileSystem, tmp_path: Path) -> None:
    files.make_dir(tmp_path / "a" / "b")
    for path in (tmp_path / "a" / "1", tmp_path / "a" / "b" / "2"):
        files.open(path, create=True).close()

    remove_tree(files, tmp_path / "a")
    remove_tree(files, tmp_path / "a")

    assert files.list_dir(tmp_path) == []


def test_replacing_a_file_syncs_renames_and_syncs_the_directory(tmp_path: Path) -> None:
    faults = NoFaults()
    files = SteppedFileSystem(RealFileSystem(), faults)

    replace_file(files, tmp_path / "meta.properties", b"new")

    assert list(faults.steps) == [
        "create meta.properties.tmp",
        "truncate meta.properties.tmp",
        "write meta.properties.tmp",
        "fsync meta.properties.tmp",
        "rename meta.properties.tmp>meta.properties",
        f"fsync {tmp_path.name}",
    ]
    assert read_file(files, tmp_path / "meta.properties") == b"new"


@pytest.mark.parametrize(
    "step", ["create", "truncate", "write", "fsync meta.properties.tmp", "rename meta.properties.tmp"]
)
def test_a_failed_replacement_keeps_the_old_bytes(tmp_path: Path, step: str) -> None:
    path = tmp_path / "meta.properties"
    replace_file(RealFileSystem(), path, b"old")
    broken = SteppedFileSystem(RealFileSystem(), DiskError(step, code=errno.ENOSPC))

    with pytest.raises(OSError, match="as the test asked for") as caught:
        replace_file(broken, path, b"newer")

    assert caught.value.errno == errno.ENOSPC
    assert read_file(RealFileSystem(), path) == b"old"
    replace_file(RealFileSystem(), path, b"x")
    assert path.read_bytes() == b"x"


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_after_a_power_loss_a_replaced_file_is_old_or_new(tmp_path: Path, seed: int | None) -> None:
    root = tmp_path / "root"
    root.mkdir()
    files = PowerLossFileSystem(root)
    replace_file(files, root / "a", b"first")
    steps = SteppedFileSystem(files, DiskError("fsync root"))
    with pytest.raises(OSError, match="fsync root"):
        replace_file(steps, root / "a", b"second")

    files.lose_power(tmp_path / "after", seed)

    content = (tmp_path / "after" / "a").read_bytes()
    assert content in ({b"first"} if seed is None else {b"first", b"second"})


def test_a_power_loss_removes_unsynced_bytes_and_names(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    files = PowerLossFileSystem(root)
    files.make_dir(root / "log")
    file = files.open(root / "log" / "a", create=True)
    file.write(b"kept", 0)
    file.sync()
    file.write(b"lost", 4)
    other = files.open(root / "log" / "b", create=True)
    other.write(b"no name", 0)
    files.sync_dir(root)
    before = files.open(root / "log" / "a")
    files.lose_power(tmp_path / "nameless")
    files.sync_dir(root / "log")
    files.unlink(root / "log" / "b")
    files.lose_power(tmp_path / "named")
    for handle in (file, other, before):
        handle.close()

    assert not list((tmp_path / "nameless" / "log").iterdir())
    assert {p.name: p.read_bytes() for p in (tmp_path / "named" / "log").iterdir()} == {
        "a": b"kept",
        "b": b"",
    }


def test_a_failed_write_may_be_partial(tmp_path: Path) -> None:
    files = SteppedFileSystem(RealFileSystem(), DiskError("write .log", nth=2, code=errno.ENOSPC))
    file = files.open(tmp_path / f"{0:020d}.log", create=True)
    file.write(b"0123", 0)

    with pytest.raises(OSError, match="No space left"):
        file.write(b"4567", 4)

    assert file.size() == 6
    file.close()
