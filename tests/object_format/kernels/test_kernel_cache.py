"""Compiled kernels are valid for exactly one version of all kernels, and are stored where that is safe.

Each test runs kernels of a copy of the packages in new processes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from object_format.kernels.runtime.identity import KERNEL_DIGEST, digest_of_sources
from object_format.kernels.runtime.kernel_cache import KernelCacheError, private_temporary_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[3]
CALLEE = "object_format/kernels/runtime/callee.py"
MODULES = {
    CALLEE: """
from numba import njit

@njit(cache=True)
def scaled(number):
    return 2 * number
""",
    "object_format/kernels/hashing/caller.py": """
from numba import njit
from object_format.kernels.runtime.callee import scaled

@njit(cache=True)
def call(number):
    return scaled(number)
""",
    "object_format/segment_file/outer_caller.py": """
from numba import njit
from object_format.kernels.hashing.caller import call

@njit(cache=True)
def call_outside(number):
    return call(number)
""",
}
PROGRAM = """
import json
from numba.core import event
with event.install_recorder("numba:compile") as compiled:
    from object_format.segment_file.outer_caller import call_outside
    from object_format.kernels.hashing.caller import call
    results = call(10), call_outside(10)
from object_format.kernels.runtime.identity import KERNEL_DIGEST
names = {each.data["dispatcher"].py_func.__name__ for _, each in compiled.buffer}
names &= {"call", "call_outside", "scaled"}  # others are compiled when their modules are imported
print(json.dumps({"results": results, "compiled": sorted(names), "digest": KERNEL_DIGEST,
                  "directory": call.stats.cache_path}))
"""
READ_ONLY_FOR_A_USER_WITHOUT_HOME = """
mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec unshare --user --map-user=12345 -- "$@"
"""


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """A copy of the packages without compiled code, with three more kernels that call each other."""
    root = tmp_path / "installation"
    for package in ("core", "object_format", "spark_jobs"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in MODULES.items():
        (root / name).write_text(text)
    return root


def run(installation: Path, command: Sequence[str] = (), **environment: str) -> dict[str, Any]:
    """Run the kernels in a new process; `command` starts it."""
    ran = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM],
        cwd="/",
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(installation),
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    report: dict[str, Any] = json.loads(ran.stdout)
    return report


def test_an_edited_kernel_is_compiled_again_with_all_its_callers(installation: Path) -> None:
    """The callers are in other folders, one of them outside the kernels; a second process loads them."""
    first, second = run(installation), run(installation)
    callee = installation / CALLEE
    callee.write_text(callee.read_text().replace("2 *", "3 *"))
    edited = run(installation)

    assert first["results"] == [20, 20]
    assert (second["results"], second["compiled"]) == ([20, 20], [])
    assert (edited["results"], edited["compiled"]) == ([30, 30], ["call", "call_outside", "scaled"])
    assert first["digest"] == second["digest"] != edited["digest"]
    assert second["directory"] == str(installation / "object_format/kernels/hashing/__pycache__")


@pytest.fixture
def read_only(installation: Path) -> Sequence[str]:
    """A command for a user without a home who may not write to the installation."""
    shell = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", READ_ONLY_FOR_A_USER_WITHOUT_HOME)
    command = (*shell, str(installation))
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine allows no user namespaces")
    return command


def test_a_read_only_installation_works_without_a_home(
    read_only: Sequence[str], installation: Path, tmp_path: Path
) -> None:
    """Code that is compiled already is used; the directory for temporary files takes a private copy."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    compiled = run(installation, read_only, TMPDIR=str(temporary))
    loaded = run(installation, read_only, TMPDIR=str(temporary))
    run(installation)  # as an image is built
    shutil.rmtree(temporary / "siltstone-kernels-12345")
    copied = run(installation, read_only, TMPDIR=str(temporary))

    assert compiled["compiled"] == ["call", "call_outside", "scaled"]
    assert (loaded["compiled"], copied["compiled"]) == ([], [])
    assert {each["results"][1] for each in (compiled, loaded, copied)} == {20}
    private = temporary / "siltstone-kernels-12345"
    assert Path(copied["directory"]).parent == private
    assert private.stat().st_mode & 0o777 == 0o700


NO_BYTES = ("sh", "-c", 'ulimit -f 0 && exec "$0" "$@"')
"""No file may have any byte, so nothing is stored."""


def test_a_read_only_installation_works_although_its_code_cannot_be_copied(
    read_only: Sequence[str], installation: Path, tmp_path: Path
) -> None:
    """The directory that can be written is full. Nothing that is incomplete remains in it."""
    run(installation)
    report = run(installation, (*read_only, *NO_BYTES), XDG_CACHE_HOME=str(tmp_path))

    assert report["results"] == [20, 20]
    assert {path.stat().st_size for path in Path(report["directory"]).iterdir()} <= {0}
    assert list(Path(report["directory"]).glob("tmp*")) == []


def test_a_full_cache_does_not_fail_a_call(installation: Path, tmp_path: Path) -> None:
    report = run(installation, NO_BYTES, NUMBA_CACHE_DIR=str(tmp_path / "cache"))

    assert report["results"] == [20, 20]
    assert list((tmp_path / "cache").rglob("*.nbc")) == []


REPORT = """
import json
from spark_jobs.task.worker_check import report_of_this_process
print(json.dumps(report_of_this_process().problems))
"""


def test_the_preflight_names_the_directories_if_kernels_cannot_be_stored(tmp_path: Path) -> None:
    """A file is in the place of every directory, so that none can be read, either."""
    root, temporary, blocked = tmp_path / "installation", tmp_path / "temporary", tmp_path / "file"
    for package in ("core", "catalog", "object_format", "object_store", "planner", "spark_jobs"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in {path.parent for path in root.rglob("*.py")}:
        (folder / "__pycache__").touch()
    temporary.mkdir()
    private = temporary / f"siltstone-kernels-{os.getuid()}"
    for path in (private, blocked):
        path.touch()
    ran = subprocess.run(
        [sys.executable, "-c", REPORT],
        cwd="/",
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NUMBA_CACHE_DIR": str(blocked / "configured"),
            "XDG_CACHE_HOME": str(blocked / "user"),
            "TMPDIR": str(temporary),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    (problem,) = json.loads(ran.stdout)
    assert problem.startswith("compiled kernels cannot be stored: ")
    for directory in (blocked / "configured", root / "object_format", blocked / "user", private):
        assert str(directory) in problem
    assert problem.endswith("(set NUMBA_CACHE_DIR to a directory that only this user can write)")


@pytest.mark.parametrize("mode", [0o777, 0o750])
def test_a_temporary_directory_that_others_can_access_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """Another user could put code there that this process executes."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory = private_temporary_directory()
    directory.chmod(mode)
    with pytest.raises(KernelCacheError, match="remove it, or set NUMBA_CACHE_DIR"):
        private_temporary_directory()
    directory.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    directory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KernelCacheError):
        private_temporary_directory()


def test_the_digest_covers_names_and_contents_of_sources(tmp_path: Path) -> None:
    """Compiled code and other files do not count."""
    (tmp_path / "one.py").write_text("1")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "two.py").write_text("2")
    digests = [digest_of_sources(tmp_path, recursive=True)]
    (tmp_path / "one.pyc").write_text("compiled")
    assert digest_of_sources(tmp_path, recursive=True) == digests[0]
    (tmp_path / "folder" / "two.py").write_text("3")
    digests.append(digest_of_sources(tmp_path, recursive=True))
    (tmp_path / "folder" / "two.py").rename(tmp_path / "folder" / "three.py")
    digests.append(digest_of_sources(tmp_path, recursive=True))

    assert len({*digests, KERNEL_DIGEST}) == 4
    assert digest_of_sources(tmp_path, recursive=False) not in digests
