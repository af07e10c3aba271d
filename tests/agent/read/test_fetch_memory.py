"""The share of the fetch memory that one response may use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.read.fetch_memory import MIN_SHARE, SMALL_RESPONSE, FetchMemory
from agent.runtime.errors import BusyError

_MIB = 1024 * 1024


@given(
    st.integers(8 * SMALL_RESPONSE, 256 * _MIB),
    st.lists(st.integers(SMALL_RESPONSE + 1, 64 * _MIB), max_size=60),
)
def test_a_small_response_fits_besides_any_number_of_large_ones(limit: int, sizes: list[int]) -> None:
    """Large responses are never released here, and each is as large as allowed, or one large batch."""
    memory = FetchMemory(limit)
    for size in [*sizes, *[SMALL_RESPONSE + 1] * (limit // SMALL_RESPONSE)]:
        share = memory.share
        assert MIN_SHARE <= share <= max(MIN_SHARE, memory.free // 4)
        for each in (share, size):
            if each > SMALL_RESPONSE and memory.used and memory.fits(each):
                memory.reserve(each)
        memory.used = memory.used or SMALL_RESPONSE + 1
    assert memory.fits(SMALL_RESPONSE)
    assert not memory.fits(SMALL_RESPONSE + 1)
    with pytest.raises(BusyError), memory.reserving_response(SMALL_RESPONSE + 1):
        pass
    assert memory.rejections == 1


def test_a_response_larger_than_any_share_is_the_only_one() -> None:
    memory = FetchMemory(_MIB)
    assert memory.fits(_MIB)
    assert not memory.fits(_MIB + 1)
    memory.reserve(1)
    assert not memory.fits(_MIB - 1)
    assert memory.required_free_bytes(_MIB - 1) == memory.required_free_bytes(2 * _MIB) == _MIB
    memory.release(1)
    assert memory.fits(_MIB - 1)


def test_a_small_budget_can_be_used_completely() -> None:
    """A budget of one share occurs in tests and on tiny machines."""
    memory = FetchMemory(MIN_SHARE)
    assert memory.share == MIN_SHARE
    memory.reserve(MIN_SHARE - 10)
    assert memory.share == 10
    assert memory.fits(10)
    assert not memory.fits(11)


def test_records_of_a_fetch_count_until_it_ends() -> None:
    """Nothing always fits, also beyond the limit, and a batch larger than the whole memory fits alone."""
    memory = FetchMemory(_MIB)
    with memory.holding() as held, memory.holding() as other:
        assert held.add(2 * _MIB)
        assert memory.used == _MIB
        assert not other.add(1)
        with pytest.raises(BusyError):
            other.require(1)
        held.add_unchecked(10)
        assert other.add(0)
        assert memory.used == _MIB + 10
    assert memory.used == 0
