"""Small files that are read and replaced as a whole, and trees that are removed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer

    from local_tier.files.file_system import FileSystem

TEMPORARY_SUFFIX = ".tmp"


def read_file(files: FileSystem, path: Path) -> bytes | None:
    """All bytes of a file; None when it is not there."""
    try:
        file = files.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        content = bytearray(file.size())
        return bytes(memoryview(content)[: file.read_into(content, 0)])
    finally:
        file.close()


def replace_file(files: FileSystem, path: Path, data: Buffer) -> None:
    """Durably replace a file so that after a crash it has its old bytes or its new ones, and never a mixture.

    Written beside it, synced, renamed, then the directory synced: Kafka's `Utils.atomicMoveWithFallback`.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    file = files.open(temporary, create=True)
    try:
        file.truncate(0)
        file.write(data, 0)
        file.sync()
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_dir(path.parent)


def remove_tree(files: FileSystem, path: Path) -> None:
    """Remove a directory with all that is in it; what is gone already is no error."""
    status = files.status(path)
    if status is None:
        return
    for name in files.list_dir(path):
        entry = path / name
        found = files.status(entry)
        if found is not None and found.is_directory:
            remove_tree(files, entry)
        else:
            files.unlink(entry, missing_ok=True)
    with suppress(FileNotFoundError):
        files.remove_dir(path)
