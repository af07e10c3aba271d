"""The runner of mutation tests, without running any."""

from __future__ import annotations

import importlib
import sys
from types import FunctionType
from typing import TYPE_CHECKING

import numpy as np

from object_format.kernels.batches import layout
from tests.mutation.__main__ import explained, survivors
from tests.mutation.interpreted import PythonKernels
from tests.mutation.judge import ROOT
from tests.mutation.mutants import mutant_at, positions_of
from tests.mutation.slips import read_slips
from tests.mutation.targets import TARGETS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_SOURCE = '''"""A module."""


def check(count: int | None, low: int = 1) -> bool:
    """Docstring with 5 < 6."""
    if count is None:
        raise ValueError(f"{count + 1} is missing")
    prefetch(count + 1)
    last = count - 8
    if low + 7 < last:
        ahead = low + 8
        prefetch(ahead)
    return low < count
'''


def test_mutants_change_decisions_and_nothing_else(tmp_path: Path) -> None:
    """Annotations, docstrings, messages and prefetching stay."""
    (tmp_path / "module.py").write_text(_SOURCE)
    found = [mutant_at(tmp_path, each) for each in positions_of(tmp_path, "module.py")]
    assert sorted({(each.before, each.after) for each in filter(None, found)}) == [
        (
            "def check(count: int | None, low: int = 1) -> bool:",
            "def check(count: int | None, low: int = 0) -> bool:",
        ),
        (
            "def check(count: int | None, low: int = 1) -> bool:",
            "def check(count: int | None, low: int = 2) -> bool:",
        ),
        ("if count is None:", "if count is not None:"),
        ("if count is None:", "if not count is None:"),
        ("return low < count", "return low <= count"),
    ]


_KERNELS = """from numba import njit

from object_format.kernels.runtime.intrinsics import borrowed


@njit(nogil=True, cache=True)
def first(data):
    return borrowed(data)[0]
"""


def test_kernels_run_as_python_if_a_target_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_kernels.py").write_text(_KERNELS)
    finder = PythonKernels(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    finder.names.add("some_kernels")

    module = importlib.import_module("some_kernels")

    del sys.modules["some_kernels"]
    assert isinstance(module.first, FunctionType)
    assert module.first([5, 6]) == 5


def test_rows_have_all_fields_as_attributes() -> None:
    """Numpy's own attribute `size` would hide one of them."""
    rows = np.zeros(2, layout.BATCH_ROW)
    rows["size"] = 61, 70
    rows[1].position = 5

    assert [each.size for each in rows] == [61, 70]
    assert rows["position"].tolist() == [0, 5]


def test_survivors_are_read_from_the_output_of_a_run(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.write_text(
        "planner: 2 mutants, 186 tests; prepared in 72 s\n"
        "planner/score.py:7: return a < b  ->  return a <= b  (10 tests)\n"
        "planner: 1.2 s for each mutant; 1 killed by a failing test, 1 survived\n"
    )
    assert survivors(output) == {("planner/score.py", "return a < b", "return a <= b")}


def test_every_target_names_existing_files() -> None:
    for target in TARGETS.values():
        assert all((ROOT / name).exists() for name in (*target.modules, *target.tests))
        assert set(target.interpreted) <= set(target.modules)


def test_explanations_are_of_code_that_exists() -> None:
    """An entry whose line has changed must be reviewed."""
    modules = {name for target in TARGETS.values() for name in target.modules}
    for module, before, _ in explained():
        assert module in modules
        lines = " ".join(line.strip() for line in (ROOT / module).read_text().splitlines())
        assert before in lines


def test_every_slip_changes_one_place_of_an_existing_file() -> None:
    """A slip whose code has changed must be made again."""
    for slip in read_slips():
        assert (ROOT / slip.file).read_text().count(slip.before) == 1, slip.what
        assert slip.after != slip.before
        assert slip.tests
        assert all((ROOT / name).exists() for name in slip.tests)
