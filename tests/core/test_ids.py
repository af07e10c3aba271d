from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.clock import ManualClock, SystemClock
from core.ids import Ids, SeededIds, SystemIds

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCES: list[Callable[[ManualClock], Ids]] = [SystemIds, lambda clock: SeededIds(7, clock)]


@pytest.mark.parametrize("source", SOURCES)
def test_uuids_have_version_7_and_contain_the_time(source: Callable[[ManualClock], Ids]) -> None:
    clock = ManualClock(1_700_000_000_123)

    made = source(clock).new_uuid()

    assert (made.version, made.int >> 80) == (7, 1_700_000_000_123)
    assert made.variant == "specified in RFC 4122"


@pytest.mark.parametrize("source", SOURCES)
def test_later_uuids_sort_later(source: Callable[[ManualClock], Ids]) -> None:
    clock = ManualClock()
    ids = source(clock)

    made = []
    for _ in range(50):
        made.append(ids.new_uuid())
        clock.advance(0.001)

    assert made == sorted(made)


def test_uuids_are_unique() -> None:
    ids = SystemIds(SystemClock())

    assert len({ids.new_uuid() for _ in range(1000)}) == 1000


@given(seed=st.integers(min_value=0, max_value=2**63))
def test_the_same_seed_gives_the_same_values(seed: int) -> None:
    first, second = SeededIds(seed, ManualClock()), SeededIds(seed, ManualClock())

    assert [first.new_uuid(), first.random_bytes(5), first.random()] == [
        second.new_uuid(),
        second.random_bytes(5),
        second.random(),
    ]


@pytest.mark.parametrize("source", SOURCES)
def test_random_floats_are_in_the_unit_interval(source: Callable[[ManualClock], Ids]) -> None:
    ids = source(ManualClock())

    assert all(0.0 <= ids.random() < 1.0 for _ in range(1000))
