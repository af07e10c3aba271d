"""The timeout of a request that changes many topics.

After the timeout, each change that has not started fails with REQUEST_TIMED_OUT and has no effect. A change
that has started is completed, and the first change always starts. In Kafka such a request takes effect as a
whole or not at all, because its controller applies it in one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from core.clock import Clock

_MAX_SECONDS = 60.0
"""Also the timeout of a request with 0: librdkafka sends 0 if it does not wait for replicas."""


class RequestDeadline:
    """The deadline of one request, counted from construction. `timeout_ms` comes from the request."""

    def __init__(self, timeout_ms: int, clock: Clock) -> None:
        seconds = min(timeout_ms / 1000, _MAX_SECONDS) if timeout_ms > 0 else _MAX_SECONDS
        self._clock = clock
        self._until = clock.monotonic() + seconds
        self._has_started = False

    def check(self) -> None:
        """Raise REQUEST_TIMED_OUT if it is too late to start the next change."""
        if self._has_started and self._clock.monotonic() >= self._until:
            raise KafkaError(
                ErrorCode.request_timed_out, "the request timed out before this change; nothing was done"
            )
        self._has_started = True
