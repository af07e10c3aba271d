"""The bounds that an S3 store keeps to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Limits:
    """Bounds on time, attempts and memory.

    A request is sent up to `attempts` times. The pause between attempts is random, up to
    `first_pause_seconds` doubled with each failure and at most `max_pause_seconds` ("full jitter", AWS
    Builders' Library, "Timeouts, retries, and backoff with jitter").
    """

    attempts: int = 6
    first_pause_seconds: float = 0.2
    max_pause_seconds: float = 10.0
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 30.0
    connections: int = 64
    #: Resumes allowed per stream, plus one for each `bytes_per_resume` that it has delivered.
    resumes: int = 16
    bytes_per_resume: int = MIB
    part_size: int = 8 * MIB
    #: Requests of a kind after which it is known what is slow, so that slow ones are hedged. None: never.
    hedge_samples: int | None = None
    #: Least time after which a request is hedged. Faster responses are none that anybody waits for.
    hedge_floor_seconds: float = 0.05
