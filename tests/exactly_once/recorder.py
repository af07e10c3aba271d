"""Writes the events of one process; an event is in the file although the process is killed afterwards."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from pathlib import Path


class Recorder:
    """The history of one process. `name` is unique among all processes of a history."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file = os.open(directory / f"{name}.jsonl", flags, 0o644)

    def note(self, event: str, **details: object) -> None:
        """Write an event with the time of the machine's monotonic clock."""
        entry = {"event": event, "at": time.monotonic_ns(), **details}
        os.write(self._file, orjson.dumps(entry, default=tuple, option=orjson.OPT_APPEND_NEWLINE))
