"""Limits of the process: open files, and memory that malloc keeps."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from agent.runtime.process_resources import open_file_count, without_garbage_collection

_ROOT = Path(__file__).parents[3]
_ROUNDS, _BUFFERS, _BYTES = 4, 8, 4 * 1024 * 1024
_PROGRAM = f"""
import resource, sys
from agent.runtime.process_resources import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
for number in range({_ROUNDS} + 1):
    if number == 1:  # the first round touches the memory for the first time
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffers = [bytearray({_BYTES}) for _ in range({_BUFFERS})]
    del buffers
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_open_files_are_counted(tmp_path: Path) -> None:
    before = open_file_count()
    with (tmp_path / "file").open("wb"):
        assert open_file_count() == before + 1


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_limit() -> None:
    """The test uses a separate process, whose soft limit is lower."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import resource; from agent.runtime import process_resources;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (100, {hard}));"
        "print(process_resources.raise_open_file_limit(), process_resources.open_file_limit())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=_ROOT)
    assert done.stdout.split() == [str(hard).encode()] * 2


def _page_faults(*, keep: bool, **environment: str) -> int:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "keep" if keep else "return"],
        capture_output=True,
        check=True,
        cwd=_ROOT,
        env=own | environment,
    )
    return int(done.stdout)


@pytest.mark.parametrize(
    "environment", [{}, {"MALLOC_TRIM_THRESHOLD_": "8388608"}], ids=["default", "configured"]
)
def test_freed_memory_is_kept_unless_the_environment_configures_malloc(environment: dict[str, str]) -> None:
    kept, returned = _page_faults(keep=True, **environment), _page_faults(keep=False, **environment)
    if environment:
        assert kept > returned / 2
    else:
        assert kept < returned / 4


@pytest.mark.parametrize("error", [None, ModuleNotFoundError])
def test_what_is_loaded_without_garbage_collection_is_left_out_of_later_ones(
    error: type[Exception] | None,
) -> None:
    gc.unfreeze()
    try:
        with contextlib.suppress(ModuleNotFoundError), without_garbage_collection():
            assert not gc.isenabled()
            if error is not None:
                raise error
        left_out = gc.get_freeze_count()
    finally:
        gc.unfreeze()
    assert gc.isenabled()
    assert left_out
