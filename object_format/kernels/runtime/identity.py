"""Identity of the kernels: a digest of all their sources.

Two processes whose digests agree produce the same bytes from the same records. Compiled code is cached under
the digest, and a compaction job names the digest that its tasks must have, so that two versions of the
kernels never work on one job.

The digest covers every kernel that a job runs, in any package, and the modules whose constants are compiled
into kernels. It does not cover the kernels of agents, whose compiled code has the digest of its folder, too.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.resources.abc import Traversable


def digest_of_sources(package: Traversable, *, recursive: bool) -> str:
    """Return the SHA-256, in hexadecimal, of the names and contents of a folder's Python files."""
    digest = hashlib.sha256()
    for name, content in sorted(_sources(package, "", recursive=recursive)):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _sources(folder: Traversable, prefix: str, *, recursive: bool) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_file() and name.endswith(".py"):
            yield name, entry.read_bytes()
        elif recursive and entry.is_dir():
            yield from _sources(entry, f"{name}/", recursive=True)


SOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "object_format": (
        "kernels",
        "codecs/codec.py",
        "errors.py",
        "segment_file/block_splitter.py",
        "segment_file/layout.py",
        "segment_file/verified_batches.py",
    ),
    "spark_jobs": ("task/small_sections",),
}
"""Folders and files that the digest covers, by package. A test compares them with the imports of kernels."""


def _digest_of_kernels() -> str:
    digest = hashlib.sha256()
    for package, names in SOURCES.items():
        try:
            root = files(package)
        except ModuleNotFoundError:  # an installation without Spark
            continue
        for name in names:
            source = root.joinpath(name)
            content = (
                digest_of_sources(source, recursive=True)
                if source.is_dir()
                else hashlib.sha256(source.read_bytes()).hexdigest()
            )
            digest.update(f"{package}/{name}\0{content}\0".encode())
    return digest.hexdigest()


KERNEL_DIGEST: Final = _digest_of_kernels()
"""Digest of the kernels of this process, taken when the first of them is imported: an installation that is
upgraded later does not change a process that has loaded its kernels already."""


def short_digest(digest: str) -> str:
    """Return the beginning of a digest, for messages."""
    return digest[:12] or "unknown"
