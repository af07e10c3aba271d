"""How long a request that changes many topics may take, as its client says.

What is not begun by then is answered with REQUEST_TIMED_OUT, and was not done; what has begun is done, and
the first is begun in any case. In Kafka it is all or nothing: its controller does it in one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from core.clock import Clock

_LONGEST_SECONDS = 60.0
"""For who says more; or 0, by which librdkafka means that it does not wait for replicas."""


class RequestDeadline:
    """Begins now; `timeout_ms` is the request's."""

    def __init__(self, timeout_ms: int, clock: Clock) -> None:
        seconds = min(timeout_ms / 1000, _LONGEST_SECONDS) if timeout_ms > 0 else _LONGEST_SECONDS
        self._clock = clock
        self._until = clock.monotonic() + seconds
        self._has_begun = False

    def begin(self) -> None:
        """Raise REQUEST_TIMED_OUT where nothing more is to be begun."""
        if self._has_begun and self._clock.monotonic() >= self._until:
            raise KafkaError(ErrorCode.request_timed_out, "there was no time left for it: nothing was done")
        self._has_begun = True
