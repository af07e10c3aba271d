"""Bounds on the rate of new connections (KIP-612): of the agent, and of each IP address with a quota.

Like a Kafka broker, the agent delays connections beyond its own rate. Kafka delays the accept. The agent
accepts the connection and receives nothing from it, which is the same for its client. It closes a connection
that would wait longer than `MAX_DELAY_SECONDS`; Kafka leaves it in the backlog of the socket.

A connection beyond the rate of its address is closed, but not at once: a client that reconnects at once would
only make more of them. At most `MAX_CLOSING` connections wait for that. On a listener
with TLS, it is closed at once, before its handshake.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.quotas.rates import SampledRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.quotas.follower import QuotaFollower
    from agent.quotas.rates import Windows

UNLIMITED: Final = 2**31 - 1
"""The rate that stands for no limit, as in Kafka."""

MAX_DELAY_SECONDS: Final = 10.0
MAX_CLOSING: Final = 1_000


class Admission(NamedTuple):
    """Decision to serve or close a connection, and the seconds until then."""

    is_served: bool
    delay_seconds: float


SERVED: Final = Admission(is_served=True, delay_seconds=0.0)
REJECTED: Final = Admission(is_served=False, delay_seconds=0.0)


class CreationRate:
    """Decides about new connections. Belongs to the event loop."""

    def __init__(
        self, limit: int, quotas: QuotaFollower, windows: Windows, monotonic: Callable[[], float]
    ) -> None:
        """Take the agent's limit per second, and the quotas of addresses."""
        self._limit = limit
        self._quotas = quotas
        self._windows = windows
        self._monotonic = monotonic
        self._rate = SampledRate(windows, math.floor(monotonic() * 1000))
        self._free_at_ms = 0  # when the next connection is served

    def admit(self, host: str) -> Admission:
        """Count a connection, unless it is not served."""
        quotas = self._quotas.active
        if quotas is not None and (throttle_ms := quotas.connect(host)):
            return Admission(is_served=False, delay_seconds=throttle_ms / 1000)
        if self._limit >= UNLIMITED:
            return SERVED
        now_ms = math.floor(self._monotonic() * 1000)
        start_ms = max(now_ms, self._free_at_ms)
        if start_ms - now_ms > MAX_DELAY_SECONDS * 1000:
            return REJECTED
        self._rate.record(1, start_ms)
        throttle_ms = min(self._rate.throttle_ms(self._limit, start_ms), self._windows.window_ms)
        self._free_at_ms = start_ms + throttle_ms
        return Admission(is_served=True, delay_seconds=(self._free_at_ms - now_ms) / 1000)
