"""The digest of the kernels covers all that is compiled into the kernels of a job."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from object_format.kernels.runtime.identity import KERNEL_DIGEST, SOURCES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
PACKAGES = ("agent", "core", "object_format", "spark_jobs")
CONSTANTS = {
    "object_format/errors.py": "SURVIVORS = 14",
    "object_format/segment_file/layout.py": "BLOCK_TARGET = 256 * 1024",
    "spark_jobs/task/small_sections/columns.py": "NO_CODEC = -1",
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_an_edited_constant_changes_the_digest(name: str, tmp_path: Path) -> None:
    """Compiled code has the old number, and tasks with different numbers must not share a job."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    before = _digest_of(tmp_path)
    source, constant = tmp_path / name, CONSTANTS[name]
    assert constant in source.read_text()
    source.write_text(source.read_text().replace(constant, f"{constant} + 1"))

    assert before == KERNEL_DIGEST != _digest_of(tmp_path)


def test_the_digest_covers_every_kernel_of_a_job() -> None:
    modules = [each for each in _kernel_modules() if each.relative_to(ROOT).parts[0] != "agent"]
    assert len(modules) > 30
    assert [str(each) for each in modules if not _is_covered(each)] == []


def test_kernels_use_only_constants_that_the_validity_of_compiled_code_depends_on() -> None:
    """It depends on the digest, and on the folder of the kernel."""
    wrong = {
        str(module.relative_to(ROOT)): found
        for module in _kernel_modules()
        if (found := _foreign_names(module))
    }
    assert wrong == {}


def _digest_of(installation: Path) -> str:
    program = "from object_format.kernels.runtime.identity import KERNEL_DIGEST; print(KERNEL_DIGEST)"
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd="/",
        env={"PYTHONPATH": str(installation), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def _kernel_modules() -> Iterator[Path]:
    """Yield the modules with compiled functions."""
    for package in PACKAGES:
        for module in sorted((ROOT / package).rglob("*.py")):
            if any(_is_compiled(each) for each in ast.walk(ast.parse(module.read_text()))):
                yield module


def _is_compiled(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        ast.unparse(each).startswith(("njit", "intrinsic")) for each in node.decorator_list
    )


def _is_covered(module: Path) -> bool:
    package, *_ = module.relative_to(ROOT).parts
    inside = ROOT / package
    return any(module.is_relative_to(inside / name) for name in SOURCES.get(package, ()))


def _foreign_names(module: Path) -> set[str]:
    """Return the names in compiled functions whose values come from other modules of this repository."""
    tree = ast.parse(module.read_text())
    foreign: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            source = ROOT.joinpath(*node.module.split(".")).with_suffix(".py")
            if node.module.partition(".")[0] in PACKAGES and not (
                _is_covered(source) or source.parent == module.parent
            ):
                foreign |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value and _names(node.value) & foreign:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            foreign.update(*map(_names, targets))
    compiled = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and _is_compiled(each)]
    return foreign & {name for function in compiled for each in function.body for name in _names(each)}


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
