"""Common parts of the Kafka clients of a campaign."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import aiokafka  # type: ignore[import-untyped]  # it brings no types

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TIMEOUT_SECONDS: Final = 240.0
MESSAGE_TIMEOUT_SECONDS: Final = 600.0
"""Longer than any test waits: a record that times out would leave a gap."""
IDENTITY: Final = "id"
"""Name of the header with a record's identity."""

QUICK: Final[dict[str, Any]] = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.interval.ms": 1_000,
    "socket.timeout.ms": 10_000,
    "log_level": 0,
}
"""Settings of librdkafka."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Which records the producers send, and how many per second each. Consumers log to `directory`."""

    bootstrap: str
    directory: Path
    topics: Sequence[str]
    compacted: frozenset[str]
    partitions: int
    rate: float
    seed: int


async def start_client(client: Any) -> None:  # noqa: ANN401  # it has no types
    """Start a client of aiokafka, which gives up at once if no broker responds."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return await client.start()  # type: ignore[no-any-return]  # it has no types
        except aiokafka.errors.KafkaError:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.2)
