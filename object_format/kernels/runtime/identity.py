"""Identity of the kernels: a digest of all their sources.

Two processes whose digests agree produce the same bytes from the same records. Compiled code is cached under
the digest, and a compaction job names the digest that its tasks must have, so that two versions of the
kernels never work on one job.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
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


KERNEL_DIGEST: Final = digest_of_sources(files("object_format.kernels"), recursive=True)
"""Digest of the kernels of this process, taken when the first of them is imported: an installation that is
upgraded later does not change a process that has loaded its kernels already."""


def short_digest(digest: str) -> str:
    """Return the beginning of a digest, for messages."""
    return digest[:12] or "unknown"
