"""Archive of the classes that Spark loads, which Java maps instead of parsing (class data sharing).

`siltstone warm-kernels` writes it into the directory of compiled kernels (`spark_jobs.class_recording`). Its
name has two parts:

- a digest that identifies Java and Spark's jars: another version looks for another name, and Java compares
  the jars again
- the size and the CRC-32C of its bytes: Java would crash if it mapped a file that was cut off, so a file that
  differs from its name is ignored with a warning

A session without an archive starts as usual.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark
from crc32c import crc32c

from object_format.kernels.runtime.kernel_cache import KernelCacheError, cache_directories

if TYPE_CHECKING:
    from spark_jobs.session.java import JavaRuntime

_NAME: Final = re.compile(r"spark-classes-[0-9a-f]{32}-(?P<size>\d+)-(?P<checksum>[0-9a-f]{8})\.jsa")
_CHUNK_BYTES: Final = 1 << 20

# Without these, Java prints on standard output why it ignores an archive.
_NO_WARNINGS: Final = "-Xlog:disable -Xlog:all=error:stderr"


def find_archive(java: JavaRuntime) -> Path | None:
    """Return the intact archive for this Java and Spark; None if there is none."""
    try:
        directory, read_only = cache_directories(Path(__file__).parent)
    except KernelCacheError:
        return None
    for each in (directory, *read_only):
        for archive in sorted(each.glob(f"{_prefix(java)}*.jsa")):
            if _is_intact(archive):
                return archive
            warnings.warn(
                f"Spark starts without the archive of its classes, because {archive} is damaged: remove it,"
                " and run `siltstone warm-kernels` again",
                RuntimeWarning,
                stacklevel=2,
            )
    return None


def unfinished_archive(java: JavaRuntime) -> Path:
    """Return a path for Java to write the archive to; `store_archive` gives it its name."""
    directory, _ = cache_directories(Path(__file__).parent)
    return directory / f"{_prefix(java)}{os.getpid()}.unfinished"


def store_archive(written: Path) -> Path:
    """Name a complete archive after its bytes, remove those of other versions, and return its path."""
    size, checksum = _measure(written)
    prefix = written.name.removesuffix(f"{os.getpid()}.unfinished")
    archive = written.with_name(f"{prefix}{size}-{checksum:08x}.jsa")
    written.replace(archive)
    for other in archive.parent.glob("spark-classes-*.jsa"):
        if other != archive:
            other.unlink(missing_ok=True)
    return archive


def use_options(archive: Path) -> str:
    """Return Java's options to use an archive if it fits."""
    return f'"-XX:SharedArchiveFile={archive}" {_NO_WARNINGS}'


def write_options(path: Path) -> str:
    """Return Java's options to write an archive of all classes that it has loaded when it ends."""
    return f'"-XX:ArchiveClassesAtExit={path}" {_NO_WARNINGS}'


def _prefix(java: JavaRuntime) -> str:
    """Return the beginning of the file name for this Java and Spark."""
    executable = java.executable.resolve()
    jars = Path(pyspark.__file__).parent / "jars"
    parts = [str(java.major_version), str(executable), str(jars)]
    for file in (executable, executable.parent.parent / "lib" / "modules", *sorted(jars.glob("*.jar"))):
        if file.is_file():
            found = file.stat()
            # Whole seconds, as Java compares them: layers of images have no fractions.
            parts.append(f"{file.name} {found.st_size} {int(found.st_mtime)}")
    return f"spark-classes-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}-"


def _is_intact(archive: Path) -> bool:
    """Return True if the file has the size and the checksum of its name."""
    found = _NAME.fullmatch(archive.name)
    try:
        # The size first: a file that was cut off is not read.
        return (
            found is not None
            and archive.stat().st_size == int(found["size"])
            and _measure(archive) == (int(found["size"]), int(found["checksum"], 16))
        )
    except OSError:
        return False


def _measure(file: Path) -> tuple[int, int]:
    """Return the size and the CRC-32C of a file's bytes."""
    size = checksum = 0
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with file.open("rb", buffering=0) as source:
        while count := source.readinto(buffer):
            checksum = crc32c(buffer[:count], checksum)
            size += count
    return size, checksum
