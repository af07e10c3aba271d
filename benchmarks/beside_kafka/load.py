"""Measurements of the clients of one sample. Their processes import this module, so it imports little."""

from __future__ import annotations

from dataclasses import dataclass


class LoadError(RuntimeError):
    """A load did not do its work, or took too long; another load may succeed."""


@dataclass(frozen=True, slots=True)
class Load:
    """A load that did all its work. Percentiles are the medians over the clients."""

    megabytes: float
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    transactions: int = 0
