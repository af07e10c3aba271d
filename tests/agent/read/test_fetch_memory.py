"""Which part of the memory for fetches an answer may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.read.fetch_memory import MIN_SHARE, SMALL_ANSWER, FetchMemory
from agent.runtime.errors import BusyError

_MIB = 1024 * 1024


@given(
    st.integers(8 * SMALL_ANSWER, 256 * _MIB),
    st.lists(st.integers(SMALL_ANSWER + 1, 64 * _MIB), max_size=60),
)
def test_a_small_answer_has_room_beside_any_large_ones(limit: int, sizes: list[int]) -> None:
    """As none of them goes, and each is as large as it may be, or a batch that is larger."""
    memory = FetchMemory(limit)
    for size in [*sizes, *[SMALL_ANSWER + 1] * (limit // SMALL_ANSWER)]:
        share = memory.share
        assert MIN_SHARE <= share <= max(MIN_SHARE, memory.free // 4)
        for each in (share, size):
            if each > SMALL_ANSWER and memory.held and memory.has_room_for(each):
                memory.reserve(each)
        memory.held = memory.held or SMALL_ANSWER + 1
    assert memory.has_room_for(SMALL_ANSWER)
    assert not memory.has_room_for(SMALL_ANSWER + 1)
    with pytest.raises(BusyError), memory.holding_answer(SMALL_ANSWER + 1):
        pass
    assert memory.refusals == 1


def test_an_answer_larger_than_any_share_is_held_alone() -> None:
    memory = FetchMemory(_MIB)
    assert memory.has_room_for(_MIB)
    assert not memory.has_room_for(_MIB + 1)
    memory.reserve(1)
    assert not memory.has_room_for(_MIB - 1)
    assert memory.free_for(_MIB - 1) == memory.free_for(2 * _MIB) == _MIB
    memory.release(1)
    assert memory.has_room_for(_MIB - 1)


def test_small_memory_is_given_out_whole() -> None:
    """One of a few shares, as tests and tiny machines have it."""
    memory = FetchMemory(MIN_SHARE)
    assert memory.share == MIN_SHARE
    memory.reserve(MIN_SHARE - 10)
    assert memory.share == 10
    assert memory.has_room_for(10)
    assert not memory.has_room_for(11)
