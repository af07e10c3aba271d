"""Each role imports its entry points with nothing but the distributions of its extra."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from siltstone.cli.main import COMMANDS, EXTRAS, module_of
from tests.packaging.roles import ABSENT, ENTRY_POINTS

_ROOT = Path(__file__).parents[2]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]

_IMPORT = """
import sys
from importlib.abc import MetaPathFinder

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

REFUSED, MODULES = set(sys.argv[1].split(",")), sys.argv[2].split(",")
sys.meta_path.insert(0, Refuse())
for module in MODULES:
    __import__(module)
"""


def _requirements(name: str, extras: frozenset[str]) -> list[Requirement]:
    """Return the requirements of a distribution with these extras that hold on this machine."""
    if name == "siltstone":
        lines = list(_PROJECT["dependencies"])
        for extra in extras:
            lines += _PROJECT["optional-dependencies"][extra]
        return [found for found in map(Requirement, lines) if not found.marker or found.marker.evaluate()]
    requirements = map(Requirement, metadata.requires(name) or [])
    return [
        found
        for found in requirements
        if not found.marker or any(found.marker.evaluate({"extra": extra}) for extra in (extras or {""}))
    ]


def _closure(extra: str) -> set[str]:
    """Return the names of all distributions that `siltstone[extra]` installs."""
    found: set[tuple[str, frozenset[str]]] = set()
    queue = [("siltstone", frozenset({extra})), ("siltstone", frozenset[str]())]
    while queue:
        step = queue.pop()
        if step in found:
            continue
        found.add(step)
        for requirement in _requirements(*step):
            name = canonicalize_name(requirement.name)
            queue += [(name, frozenset(requirement.extras)), (name, frozenset[str]())]
    return {name for name, _ in found}


@pytest.mark.parametrize("role", sorted(ENTRY_POINTS))
def test_role_imports_its_entry_points_with_its_extra_alone(role: str) -> None:
    installed = _closure(role)
    refused = [
        module
        for module, distributions in metadata.packages_distributions().items()
        if module.isidentifier() and not installed & set(map(canonicalize_name, distributions))
    ]
    assert "pytest" in refused, "the list of other distributions is empty"
    subprocess.run(
        [sys.executable, "-c", _IMPORT, ",".join(refused), ",".join(ENTRY_POINTS[role])],
        check=True,
        cwd=_ROOT,
        timeout=300,
    )


@pytest.mark.parametrize("role", sorted(ENTRY_POINTS))
def test_role_leaves_out_what_it_does_not_need(role: str) -> None:
    assert not _closure(role) & set(ABSENT[role])


def test_every_command_names_the_extra_that_it_needs() -> None:
    assert EXTRAS.keys() == COMMANDS.keys()
    assert all(module_of(command) in ENTRY_POINTS[extra] for command, extra in EXTRAS.items())


@pytest.mark.parametrize(
    ("command", "package", "extra"), [("plan", "psycopg", "planner"), ("agent", "kio", "agent")]
)
def test_a_command_without_its_packages_names_the_extra(
    command: str, package: str, extra: str, tmp_path: Path
) -> None:
    """Packages may be missing when the command is loaded, or only when it runs."""
    script = _IMPORT.replace(
        "for module in MODULES:\n    __import__(module)",
        f"from siltstone.cli.main import main\nmain([{command!r}, '--data-dir', {str(tmp_path)!r}])",
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, package, ""],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
        timeout=300,
    )
    assert ran.returncode == 1
    assert f"siltstone {command} needs the Python package {package!r}" in ran.stderr
    assert f"siltstone[{extra}]" in ran.stderr


def test_all_installs_every_role() -> None:
    everything = _closure("all")
    assert all(_closure(role) <= everything for role in ENTRY_POINTS)
