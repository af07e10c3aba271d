"""Measurements of the clients of one sample. Their processes import this module, so it imports little."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class LoadError(RuntimeError):
    """A load did not do its work, or took too long; another load may succeed."""


@dataclass(frozen=True, slots=True)
class Load:
    """A load that did all its work. Percentiles are the medians over the clients.

    `requests` has the means of what clients say of their requests: `batch_kib`, `request_kib`, `latency_ms`,
    and `in_flight`, the number of requests of one client that wait for their responses.
    """

    megabytes: float
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    transactions: int = 0
    requests: Mapping[str, float] = field(default_factory=dict)
