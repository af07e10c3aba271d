"""Deadlines of a group."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from agent.groups.classic.messages import LeavingMember
from agent.groups.deadlines import Deadlines
from core.clock import ManualClock
from tests.agent.groups.classic_harness import ClassicHarness

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_cancelled_deadlines_take_no_memory() -> None:
    """Members that join and leave have session timeouts of up to half an hour."""
    harness = ClassicHarness()
    deadlines = harness.group._machine.deadlines
    for _ in range(2000):
        harness.group.leave([LeavingMember(member_id=harness.new_member_id())])
    assert len(deadlines._queue) < 200
    assert len(deadlines._queued) < 200


@given(st.lists(st.tuples(st.integers(0, 250), st.integers(0, 2000) | st.none()), max_size=600))
def test_every_deadline_that_is_not_cancelled_ends_once_and_in_time(
    changes: Sequence[tuple[int, int | None]],
) -> None:
    """A change sets the deadline of a key, or cancels it. Then the clock ticks."""
    clock = ManualClock()
    deadlines = Deadlines(clock)
    expected: dict[int, int] = {}
    ended: list[int] = []
    for now, (key, seconds) in enumerate(changes, 1):
        if seconds is None:
            deadlines.cancel(key)
            expected.pop(key, None)
        else:
            deadlines.set(key, 1000 * seconds, partial(ended.append, key))
            expected[key] = now - 1 + seconds
        clock.advance(1)
        deadlines.expire()
        due = sorted(key for key, at in expected.items() if at <= now)
        assert sorted(ended) == due
        ended.clear()
        for each in due:
            del expected[each]
    clock.advance(2000)
    deadlines.expire()
    assert sorted(ended) == sorted(expected)


def test_deadlines_that_remain_end_in_their_order_after_many_were_cancelled() -> None:
    clock = ManualClock()
    deadlines = Deadlines(clock)
    ended: list[int] = []
    for key in range(1000):
        deadlines.set(key, 1000 * (1 + key % 10), partial(ended.append, key))
    deadlines.set(7, 100_000, partial(ended.append, 7))
    for key in range(10, 1000):
        deadlines.cancel(key)
    assert len(deadlines._queue) < 200
    assert deadlines.earliest == clock.monotonic() + 1
    clock.advance(20)
    deadlines.expire()
    assert ended == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    clock.advance(100)
    deadlines.expire()
    assert ended[-1] == 7
