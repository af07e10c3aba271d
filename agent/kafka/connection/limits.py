"""What one connection may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.kafka.connection.slow_client_policy import SlowClientPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Bounds of one connection."""

    max_request_bytes: int
    max_pending_requests: int
    patience: SlowClientPolicy
