"""Defaults of runs on Spark. This module imports nothing, because every command reads its settings."""

from __future__ import annotations

from typing import Final

DEFAULT_WAIT_SECONDS: Final = 300.0
"""Time for which a run waits for Spark to run a task."""
