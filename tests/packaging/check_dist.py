"""Install the built wheel once per role and import the role's entry points; run by `make dist`.

The versions are those of `constraints.txt`, as the installation guide says. The wheel must
hold every tracked file of the packages, and the source archive must build the same wheel.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

from tests.packaging.roles import ENTRY_POINTS

_ROOT = Path(__file__).parents[2]
_UV = Path(sys.executable).with_name("uv")
_IMPORT_ALL = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


def _run(*command: str | Path, cwd: Path = _ROOT) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _modules(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def _check_contents(wheel: Path) -> None:
    """Compare the wheel with the tracked files of its packages."""
    packed = _modules(wheel)
    packages = sorted({name.split("/")[0] for name in packed})
    tracked = set(_run("git", "ls-files", "--", *packages).split())
    if packed != tracked:
        sys.exit(f"{wheel.name} differs from the tracked files: {sorted(packed ^ tracked)}")
    untyped = [package for package in packages if f"{package}/py.typed" not in packed]
    if untyped:
        sys.exit(f"{wheel.name} has no py.typed in {untyped}")


def _check_source(source: Path, wheel: Path, scratch: Path) -> None:
    """Build a wheel from the source archive and compare its contents."""
    _run(_UV, "build", "--wheel", "--no-build-isolation", "--out-dir", scratch, source)
    (rebuilt,) = scratch.glob("*.whl")
    if _modules(rebuilt) != _modules(wheel):
        sys.exit(f"{source.name} builds another wheel: {sorted(_modules(rebuilt) ^ _modules(wheel))}")


def _check_role(role: str, wheel: Path, constraints: Path, scratch: Path) -> None:
    """Install one role into a new environment and import its entry points there."""
    environment = scratch / role
    python = environment / "bin" / "python"
    _run(_UV, "venv", "--quiet", "--python", sys.executable, environment)
    _run(
        *(_UV, "pip", "install", "--quiet", "--python", python, "--link-mode", "hardlink"),
        *("--constraint", constraints, f"siltstone[{role}] @ {wheel.as_uri()}"),
    )
    _run(python, "-c", _IMPORT_ALL, *ENTRY_POINTS[role], cwd=scratch)
    version = _run(environment / "bin" / "siltstone", "--version", cwd=scratch).strip()
    sys.stdout.write(f"{role}: {version}, {len(ENTRY_POINTS[role])} entry points imported\n")


def main(folder: Path) -> None:
    """Check the only wheel and the only source archive in `folder`."""
    (wheel,) = folder.glob("*.whl")
    (source,) = folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        _check_contents(wheel)
        _check_source(source, wheel, scratch)
        for role in ENTRY_POINTS:
            _check_role(role, wheel, folder / "constraints.txt", scratch)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
