from __future__ import annotations

import pytest

from core.clock import ManualClock
from local_tier.cleaner.cleaner import Throttler


@pytest.mark.parametrize("portion", [1, 1_000, 40_000, 5_000_000])
def test_bytes_above_the_rate_are_delayed(portion: int) -> None:
    clock = ManualClock()
    throttler = Throttler(clock, 100_000)
    for _ in range(10_000_000 // portion if portion > 1 else 1_000_000):
        throttler.maybe_throttle(portion)

    total = 10_000_000 if portion > 1 else 1_000_000
    assert clock.monotonic() == pytest.approx(total / 100_000, abs=0.31)


def test_bytes_below_the_rate_are_not_delayed() -> None:
    clock = ManualClock()
    throttler = Throttler(clock, 1_000)
    for _ in range(20):
        clock.advance(1)
        throttler.maybe_throttle(900)

    assert clock.monotonic() == 20


def test_nothing_is_delayed_without_a_limit() -> None:
    clock = ManualClock()
    Throttler(clock).maybe_throttle(2**60)

    assert clock.monotonic() == 0
