"""The marker that all logs of a directory were closed in order, so that none needs recovery.

Source: Kafka's CleanShutdownFileHandler. That the file is there is what counts; inside, as JSON, is the epoch
of the process that wrote it (KIP-966).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from local_tier.files.directory_names import CLEAN_SHUTDOWN
from local_tier.files.whole_files import replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.files.file_system import FileSystem


def mark_clean(files: FileSystem, directory: Path, epoch: int = -1) -> None:
    """Durably say that the logs below `directory` were flushed and closed."""
    replace_file(files, directory / CLEAN_SHUTDOWN, orjson.dumps({"version": 0, "brokerEpoch": epoch}))


def take_clean_mark(files: FileSystem, directory: Path) -> bool:
    """Whether the last shutdown was clean; the marker is durably gone afterwards.

    Gone before any log is loaded: a crash while loading must not look like a clean shutdown later
    (KAFKA-10471).
    """
    path = directory / CLEAN_SHUTDOWN
    if files.status(path) is None:
        return False
    files.unlink(path, missing_ok=True)
    files.sync_dir(directory)
    return True
