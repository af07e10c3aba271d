"""Measured rates of one client, by Kafka's rules: a sum over sampled windows, and a token bucket.

Source: Kafka's `SampledStat`, `Rate`, `TokenBucket` and `QuotaUtils`. All times are milliseconds of a clock
that never goes back.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The windows over which a rate is measured: `count` samples of `window_ms` each.

    Kafka's `quota.window.num` and `quota.window.size.seconds`. The last sample is incomplete.
    """

    count: int
    window_ms: int

    @property
    def whole_seconds(self) -> float:
        """The length of the complete windows. A client may use up its rate of this time at once."""
        return (self.count - 1) * self.window_ms / 1000


class SampledRate:
    """Sum of the amounts of the last windows, by the time that they span.

    There is a ring of `count + 1` samples. A sample without an event during all windows starts again.
    """

    __slots__ = ("_current", "_last_events", "_starts", "_values", "_windows")

    def __init__(self, windows: Windows, now_ms: int) -> None:
        self._windows = windows
        self._current = 0
        self._starts = array("q", [now_ms])
        self._last_events = array("q", [now_ms])
        self._values = array("d", [0.0])

    def record(self, amount: float, now_ms: int) -> None:
        """Add an amount, which is negative to take one back."""
        if now_ms - self._starts[self._current] >= self._windows.window_ms:
            self._advance(now_ms)
        self._values[self._current] += amount
        self._last_events[self._current] = now_ms

    def _advance(self, now_ms: int) -> None:
        self._current = (self._current + 1) % (self._windows.count + 1)
        if self._current == len(self._starts):
            self._starts.append(now_ms)
            self._last_events.append(now_ms)
            self._values.append(0.0)
        else:
            self._reset(self._current, now_ms)

    def _reset(self, index: int, now_ms: int) -> None:
        self._starts[index] = self._last_events[index] = now_ms
        self._values[index] = 0.0

    def measure(self, now_ms: int) -> tuple[float, int]:
        """Return the rate per second, and the milliseconds over which it is measured.

        A client that has just begun is measured over all complete windows nevertheless, so that a short burst
        is not a high rate.
        """
        windows = self._windows
        expiry_ms = windows.count * windows.window_ms
        for index, last in enumerate(self._last_events):
            if now_ms - last >= expiry_ms:
                self._reset(index, now_ms)
        span_ms = now_ms - min(self._starts)
        missing = windows.count - 1 - span_ms // windows.window_ms
        span_ms = max(span_ms + max(missing, 0) * windows.window_ms, 1)
        return sum(self._values) * 1000 / span_ms, span_ms

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return the time without further amounts after which the rate is `limit`; 0 if it is not exceeded.

        It is (O - T) / T * W for the observed rate O, the limit T, and the time W over which O is measured.
        """
        observed, span_ms = self.measure(now_ms)
        return 0 if observed <= limit else math.floor((observed - limit) / limit * span_ms + 0.5)


class TokenBucket:
    """Tokens that flow in at the limit, up to those of all windows (KIP-599). Negative tokens are a debt."""

    __slots__ = ("_tokens", "_updated_ms", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = math.inf  # full at any limit
        self._updated_ms = 0

    def take(self, amount: float, limit: float, now_ms: int) -> None:
        """Take tokens, also more than there are."""
        self._refill(limit, now_ms)
        self._tokens -= amount

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return the time after which the debt is paid; 0 if there is none."""
        self._refill(limit, now_ms)
        return 0 if self._tokens >= 0 else math.floor(-self._tokens / limit * 1000 + 0.5)

    def _refill(self, limit: float, now_ms: int) -> None:
        most = self._windows.count * self._windows.window_ms / 1000 * limit
        self._tokens = min(most, self._tokens + limit * (now_ms - self._updated_ms) / 1000)
        self._updated_ms = now_ms
