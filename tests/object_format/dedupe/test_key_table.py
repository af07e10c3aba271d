"""The key table: a set of fingerprints in fixed memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInputError
from object_format.dedupe import KeyTable, key_capacity
from object_format.kernels.dedupe.key_table import DROP, KEEP

Words = npt.NDArray[np.uint32]


def add(table: KeyTable, words: Words) -> list[bool]:
    """Return for each fingerprint whether it was new."""
    count = words.size // 3
    outcomes = table.find_survivors(
        words, np.zeros(count, np.uint8), count, newest_last=False, drop_tombstones=False
    )
    assert set(outcomes.tolist()) <= {DROP, KEEP}
    return [bool(outcome) for outcome in outcomes.tolist()]


def random_words(count: int, seed: int) -> Words:
    words = np.random.default_rng(seed).integers(0, 2**32, 3 * count, np.uint32)
    words[::3] |= 1
    return words


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 2**31, 2**32 - 1]), st.integers(0, 2), st.integers(0, 2)),
        max_size=60,
    ),
    st.none() | st.integers(0, 100),
)
def test_the_table_is_a_set_even_if_first_words_collide(
    fingerprints: list[tuple[int, int, int]], expected: int | None
) -> None:
    table = KeyTable(4096)
    table.clear(expected)
    seen: set[tuple[int, int, int]] = set()
    kept = add(table, np.array(fingerprints, np.uint32).reshape(-1))
    for fingerprint, is_new in zip(fingerprints, kept, strict=True):
        assert is_new == (fingerprint not in seen)
        seen.add(fingerprint)
    assert table.count == len(seen)


def test_all_keys_up_to_the_capacity_are_found() -> None:
    table = KeyTable(3_000_000)
    words = random_words(table.capacity, seed=1)
    assert all(add(table, words))
    assert not any(add(table, words))
    assert table.count == table.capacity


def test_a_full_table_adds_no_keys_and_keeps_its_keys() -> None:
    table = KeyTable(120_000)
    words, more = random_words(table.capacity, seed=2), random_words(1000, seed=3)
    add(table, words)
    assert all(add(table, more))
    assert all(add(table, more))
    assert not any(add(table, words))
    assert table.count == table.capacity


def test_a_cleared_table_is_empty() -> None:
    table = KeyTable(1_200_000)
    words = random_words(5000, seed=4)
    for expected in (None, 5000, None, 6000, 5000):
        table.clear(expected)
        assert table.count == 0
        assert all(add(table, words))
        assert not any(add(table, words))


@pytest.mark.parametrize("expected", [0, 1, 10, 1000])
def test_the_expected_number_of_keys_fits(expected: int) -> None:
    table = KeyTable(1_200_000)
    for seed in range(20):
        table.clear(expected)
        add(table, random_words(expected, seed))
        assert table.count == expected


@pytest.mark.parametrize(
    ("expected", "slots"),
    [(0, 64 + 42), (32, 64 + 42), (33, 66 + 42), (100, 200 + 42), (150, 299 + 42), (None, 299 + 42)],
)
def test_the_expected_number_of_keys_limits_the_used_slots(expected: int | None, slots: int) -> None:
    """There are two home slots for each key, at least 64, and an eighth of the table for displaced keys."""
    table = KeyTable(341 * 12)
    table.clear(expected)
    add(table, random_words(3000, seed=6))
    assert table.count == min(slots, table.capacity)
    table.clear()
    assert add(table, random_words(10, seed=6)) == [True] * 10


@pytest.mark.parametrize("known", [0, 1])
def test_keys_are_looked_up_without_being_added(known: int) -> None:
    table = KeyTable(4096)
    words = random_words(3, seed=7)
    add(table, words[: 3 * known])
    flags = np.zeros(3, np.uint8)
    for _ in range(2):
        outcomes = table.find_survivors(
            words, flags, 3, newest_last=True, drop_tombstones=False, may_add=False
        )
        assert outcomes.tolist() == [DROP] * known + [KEEP] * (3 - known)
        assert table.count == known


def test_ten_million_keys_fit_into_128_mib() -> None:
    table = KeyTable(134_217_728)
    assert table.capacity >= 10_000_000
    assert table.table_bytes <= 134_217_728


@pytest.mark.parametrize("table_bytes", [192, 1000, 1_200_000, 8_000_001])
def test_key_capacity_equals_the_capacity_of_a_table(table_bytes: int) -> None:
    """It also works for sizes that no machine has."""
    table = KeyTable(table_bytes)
    assert key_capacity(table_bytes) == table.capacity
    add(table, random_words(table.capacity + 100, seed=5))
    assert table.count == table.capacity
    assert key_capacity(1 << 60) > 1 << 56


def test_an_eighth_of_a_small_table_is_for_displaced_keys() -> None:
    assert key_capacity(1600 * 12) == 1400 * 95 // 100


def test_a_table_without_slots_is_rejected() -> None:
    for make in (KeyTable, key_capacity):
        with pytest.raises(InvalidInputError, match="too small"):
            make(100)
