"""Java maps the archive of Spark's classes, and starts without it if it is damaged or does not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spark_jobs.session import class_archive
from spark_jobs.session.class_archive import find_archive, store_archive, unfinished_archive
from spark_jobs.session.java import JavaRuntime

RECORDED = """
import os, sys, warnings
from pathlib import Path
from pyspark import SparkContext
from spark_jobs import class_recording
from spark_jobs.class_recording import record_classes
from spark_jobs.session import class_archive
from spark_jobs.session.java import find_java
from spark_jobs.session.spark_session import SparkSettings, _archive_options, spark_session

cache, store = map(Path, sys.argv[1:])
class_archive.cache_directories = lambda _: (cache, ())
settings = SparkSettings(master="local[1]", driver_memory="512m")
checked = []
class_recording.check_workers = lambda spark, *_, **__: checked.append(spark)

archive = record_classes(store)
assert record_classes(store) == archive
with spark_session(settings) as spark:
    assert spark.range(3).count() == 3
    is_mapped = str(archive) in Path(f"/proc/{SparkContext._gateway.proc.pid}/maps").read_text()
damaged = archive.read_bytes()[:100_000]
archive.unlink()
archive.write_bytes(damaged)
with warnings.catch_warnings(record=True) as raised:
    warnings.simplefilter("always")
    options = _archive_options(settings, find_java(os.environ))
warned = [str(each.message).count("damaged") for each in raised]
print(is_mapped, [options], warned, len(list(cache.iterdir())), len(checked))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of archives."""
    directory = tmp_path / "cache"
    directory.mkdir()
    monkeypatch.setattr(class_archive, "cache_directories", lambda _: (directory, ()))
    return directory


@pytest.fixture
def java(tmp_path: Path) -> JavaRuntime:
    """A Java that consists of two files."""
    for name in ("bin/java", "lib/modules"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"1")
    return JavaRuntime(executable=tmp_path / "bin" / "java", major_version=17, origin="a test")


def stored(java: JavaRuntime, data: bytes) -> Path:
    """Return an archive that Java has written."""
    written = unfinished_archive(java)
    written.write_bytes(data)
    return store_archive(written)


def test_an_archive_is_found_by_the_java_that_wrote_it(
    cache: Path, java: JavaRuntime, tmp_path: Path
) -> None:
    assert find_archive(java) is None
    archive = stored(java, b"classes")

    assert find_archive(java) == archive
    assert list(cache.iterdir()) == [archive]
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "java").write_bytes(b"1")
    assert find_archive(replace(java, executable=copy / "java")) is None
    assert find_archive(replace(java, major_version=21)) is None
    (tmp_path / "lib" / "modules").write_bytes(b"22")
    assert find_archive(java) is None


def test_an_archive_is_found_in_an_image_whose_layers_have_times_in_seconds(
    cache: Path, java: JavaRuntime, tmp_path: Path
) -> None:
    """Java compares seconds, too."""
    modules = tmp_path / "lib" / "modules"
    os.utime(modules, ns=(0, 1_700_000_000_123_456_789))
    archive = stored(java, b"classes")
    assert list(cache.iterdir()) == [archive]

    os.utime(modules, ns=(0, 1_700_000_000_000_000_000))
    assert find_archive(java) == archive
    os.utime(modules, ns=(0, 1_700_000_001_000_000_000))
    assert find_archive(java) is None


def test_a_new_archive_replaces_that_of_another_version(cache: Path, java: JavaRuntime) -> None:
    old = stored(java, b"classes of 17")
    new = stored(replace(java, major_version=21), b"classes of 21")

    assert not old.exists()
    assert list(cache.iterdir()) == [new]


@pytest.mark.parametrize("damaged", [b"", b"class", b"classe5", b"classes and more"])
def test_a_damaged_archive_is_ignored_with_a_warning(cache: Path, java: JavaRuntime, damaged: bytes) -> None:
    archive = stored(java, b"classes")
    archive.write_bytes(damaged)

    with pytest.warns(RuntimeWarning, match=f"{archive} is damaged"):
        assert find_archive(java) is None

    assert find_archive_of(java, b"classes") == archive
    assert list(cache.iterdir()) == [archive]


def find_archive_of(java: JavaRuntime, data: bytes) -> Path | None:
    """Write the archive again, and look for it."""
    stored(java, data)
    return find_archive(java)


def test_an_unfinished_or_renamed_archive_is_not_used(cache: Path, java: JavaRuntime) -> None:
    unfinished_archive(java).write_bytes(b"classes")
    assert find_archive(java) is None

    archive = stored(java, b"classes")
    archive.rename(cache / archive.name.replace(".jsa", "0.jsa"))
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert find_archive(java) is None


def test_a_read_only_installation_has_the_archive_that_was_written_with_it(
    cache: Path, java: JavaRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = stored(java, b"classes")
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setattr(class_archive, "cache_directories", lambda _: (own, (cache,)))

    assert find_archive(java) == archive
    assert unfinished_archive(java).parent == own


@pytest.mark.spark
def test_java_maps_the_recorded_classes_and_gets_no_truncated_archive(tmp_path: Path) -> None:
    """The archive is written once, nothing else is left, and Java prints nothing about it.

    Java needs many seconds to write the classes of the check of the workers, too. `siltstone warm-kernels`,
    which `make test` runs once, writes all of them.
    """
    for name in ("cache", "store"):
        (tmp_path / name).mkdir()

    done = run_child(RECORDED, tmp_path / "cache", tmp_path / "store")

    assert (done.stdout, done.stderr, done.returncode) == ("True [''] [1] 1 1\n", "", 0)


def run_child(script: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in another process."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        check=False,
    )
