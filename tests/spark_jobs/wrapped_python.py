"""A program that runs a shell command and then becomes this process's Python."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_python(path: Path, command: str) -> None:
    """Write the program."""
    path.write_text(f'#!/bin/sh\n{command}\nexec {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(0o755)
