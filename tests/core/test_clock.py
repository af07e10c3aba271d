from __future__ import annotations

import pytest

from core.clock import ManualClock, SystemClock


def test_a_manual_clock_advances_only_by_advance_and_sleep() -> None:
    clock = ManualClock(1_000)
    before = (clock.now_ms(), clock.monotonic())

    clock.advance(1.5)
    clock.sleep(0.25)

    assert before == (1_000, 0.0)
    assert (clock.now_ms(), clock.monotonic()) == (2_750, 1.75)


def test_a_manual_clock_cannot_go_back() -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        ManualClock().advance(-1)


def test_the_system_clock_advances_while_it_sleeps() -> None:
    clock = SystemClock()
    wall, started = clock.now_ms(), clock.monotonic()

    clock.sleep(0.002)

    assert clock.monotonic() - started >= 0.002
    assert wall > 1_700_000_000_000
