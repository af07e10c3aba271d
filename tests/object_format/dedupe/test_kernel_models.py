"""Kernels of pass 1, each compared with a plain model of what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from object_format.codecs.codec import Codec
from object_format.dedupe import KeyTable, SurvivorFinder
from object_format.dedupe.fingerprints import Columns
from object_format.dedupe.long_sections import LongSection, copy_records, remove_records
from object_format.dedupe.survivors import SurvivorCollector
from object_format.errors import MalformedBatchError
from object_format.kernels.dedupe.buckets import split_into_buckets
from object_format.kernels.dedupe.fingerprints import (
    CONTROL_RECORD,
    HORIZON_PASSED,
    KEYLESS,
    TOMBSTONE,
    WORDS,
    fingerprint_keys,
)
from object_format.kernels.hashing.siphash import siphash128
from object_format.offset_set import OffsetSet
from object_format.record_batch.records import Record
from tests.object_format import model
from tests.object_format.dedupe.test_dedupe import NOW, SEED

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

Fingerprint = tuple[int, int, int]
K0, K1 = (np.uint64(int.from_bytes(half, "little")) for half in (SEED[:8], SEED[8:]))
HIGHEST = 2**32 - 1

FINGERPRINTS = st.tuples(
    st.sampled_from([1, 2, 15, 16, 47, 2**28, 2**31, HIGHEST - 1, HIGHEST]),
    st.sampled_from([0, 1, 2**31, HIGHEST]),
    st.integers(0, 1),
)
FLAGS = st.sampled_from(
    [
        0,
        0,
        TOMBSTONE,
        TOMBSTONE | HORIZON_PASSED,
        TOMBSTONE | HORIZON_PASSED,
        HORIZON_PASSED,
        KEYLESS,
        CONTROL_RECORD,
        CONTROL_RECORD | KEYLESS | TOMBSTONE,
    ]
)


class Row(NamedTuple):
    """One record of pass 1."""

    fingerprint: Fingerprint
    flags: int
    distance: int

    @property
    def has_key(self) -> bool:
        return not self.flags & (CONTROL_RECORD | KEYLESS)


ROWS = st.lists(st.builds(Row, FINGERPRINTS, FLAGS, st.integers(1, 3)), max_size=60)


def offsets_of(rows: Sequence[Row], first: int = 0) -> list[int]:
    return [first + sum(each.distance for each in rows[: index + 1]) for index in range(len(rows))]


def columns_of(rows: Sequence[Row], first: int = 0) -> Columns:
    columns = Columns(len(rows))
    columns.words[:] = np.array([each.fingerprint for each in rows], np.uint32).reshape(-1)
    columns.offsets[:] = offsets_of(rows, first)
    columns.flags[:] = [each.flags for each in rows]
    columns.count = len(rows)
    return columns


class TableModel:
    """Set of fingerprints that fit into so many slots, where each follows its home slot and smaller ones."""

    def __init__(self, slots: int, expected: int | None) -> None:
        overhang = slots // 8
        self.capacity = (slots - overhang) * 95 // 100
        self.homes = slots - overhang
        if expected is not None:
            self.homes = min(max(2 * expected, 64), self.homes)
        self.slots = self.homes + overhang
        self.keys: set[Fingerprint] = set()

    def add(self, key: Fingerprint) -> bool:
        """Add a key unless the table is full; return whether it is a new one in the table."""
        if len(self.keys) >= self.capacity:
            return False
        last = -1
        for first_word, _, _ in sorted({*self.keys, key}):
            last = max(last + 1, first_word * self.homes >> 32)
        if last >= self.slots:
            return False
        self.keys.add(key)
        return True


class Mode(NamedTuple):
    """Arguments of one call of `SurvivorCollector.decide`."""

    newest_last: bool
    drop_tombstones: bool
    may_add: bool
    no_older_records: bool


class Decisions:
    """Model of `SurvivorCollector`."""

    def __init__(self, table: TableModel) -> None:
        self.table = table
        self.kept: set[int] = set()
        self.tombstones: set[int] = set()
        self.outside = self.dropped = self.invalid = 0

    def decide(self, rows: Sequence[Row], offsets: Sequence[int], mode: Mode) -> None:
        numbered = list(zip(rows, offsets, strict=True))
        for row, offset in reversed(numbered) if mode.newest_last else numbered:
            if row.flags & CONTROL_RECORD:
                self.kept.add(offset)
            elif row.flags & KEYLESS:
                self.invalid += 1
            elif row.fingerprint not in self.table.keys:
                self._decide_newest(row, offset, mode)

    def _decide_newest(self, row: Row, offset: int, mode: Mode) -> None:
        is_added = mode.may_add and self.table.add(row.fingerprint)
        self.outside += not is_added
        if not row.flags & TOMBSTONE:
            self.kept.add(offset)
        elif mode.drop_tombstones and row.flags & HORIZON_PASSED and (is_added or mode.no_older_records):
            self.dropped += 1
        else:
            self.kept.add(offset)
            self.tombstones.add(offset)


MODES = st.builds(
    Mode, st.booleans(), st.booleans(), st.sampled_from([True, True, True, False]), st.booleans()
)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(ROWS, MODES), min_size=1, max_size=3),
    st.sampled_from([16, 17, 24, 80, 341]),
    st.none() | st.integers(0, 100),
)
def test_a_table_of_any_size_decides_like_a_set(
    calls: list[tuple[list[Row], Mode]], slots: int, expected: int | None
) -> None:
    """Many keys belong to the first or last slots, behind which the table ends."""
    collector = SurvivorCollector(KeyTable(slots * 12), expected_keys=expected)
    known = Decisions(TableModel(slots, expected))
    for number, (rows, mode) in enumerate(calls):
        columns = columns_of(rows, 1000 * (len(calls) - number))
        before = set(known.kept), set(known.tombstones)
        known.decide(rows, columns.offsets.tolist(), mode)
        found = collector.decide(columns.words, columns.offsets, columns.flags, len(rows), **mode._asdict())
        assert found.offsets.tolist() == sorted(known.kept - before[0])
        assert found.tombstones.tolist() == sorted(known.tombstones - before[1])
    counts = known.outside, known.dropped, known.invalid
    assert collector.exact is (known.outside == 0)
    assert collector._table.count == len(known.table.keys)
    assert collector._table.counts[1:].tolist() == list(counts)


@given(
    st.lists(st.lists(FLAGS, min_size=1, max_size=5), max_size=8),
    st.randoms(use_true_random=False),
    st.sampled_from([1, 3, 4, 100]),
)
def test_survivors_are_collected_in_any_order(
    calls: list[list[int]], randomness: random.Random, pending: int
) -> None:
    """Calls with descending offsets are usual; those of sections without older records come in any order."""
    starts = [10 * number for number in range(len(calls))][::-1]
    if randomness.random() < 0.5:
        randomness.shuffle(starts)
    collector = SurvivorCollector(KeyTable(1 << 12))
    known = Decisions(TableModel(1 << 12, None))
    mode = Mode(newest_last=True, drop_tombstones=False, may_add=True, no_older_records=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("object_format.dedupe.survivors._PENDING_OFFSETS", pending)
        for call, start in zip(calls, starts, strict=True):
            rows = [Row((start + index + 1, 0, 0), flags, 1) for index, flags in enumerate(call)]
            columns = columns_of(rows, start)
            known.decide(rows, columns.offsets.tolist(), mode)
            collector.decide(columns.words, columns.offsets, columns.flags, len(rows), **mode._asdict())
        found = collector.finish(max_buffer_bytes=5)
    assert list(found.offsets) == sorted(known.kept)
    assert list(found.tombstones) == sorted(known.tombstones)
    assert found.records_in == sum(map(len, calls))
    assert (found.keys, found.records_invalid) == (len(known.table.keys), known.invalid)
    again = collector.finish(max_buffer_bytes=5)
    assert (again.records_in, len(again.offsets), len(again.tombstones)) == (0, 0, 0)


@pytest.mark.parametrize(("pending", "additions"), [(10, 10), (9, 12), (1000, 1)])
def test_offsets_are_added_to_the_set_in_bulk(
    pending: int, additions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred records are decided one by one, newest first."""
    monkeypatch.setattr("object_format.dedupe.survivors._PENDING_OFFSETS", pending)
    added: list[int] = []

    class CountedSet(OffsetSet):
        @override
        def add(self, offsets: npt.NDArray[np.int64]) -> None:
            added.append(offsets.size)
            super().add(offsets)

    monkeypatch.setattr("object_format.dedupe.survivors.OffsetSet", CountedSet)
    collector = SurvivorCollector(KeyTable(1 << 12))
    for repeated in range(2):
        for offset in range(99, -1, -1):
            row = columns_of([Row((offset + 1, repeated, 0), 0, 0)], offset)
            collector.decide(row.words, row.offsets, row.flags, 1, newest_last=True, drop_tombstones=False)
        assert len(collector.finish(max_buffer_bytes=0).offsets) == 100
        assert (len(added), sum(added)) == (additions, 100)
        added.clear()


def removed_by_newer(rows: Sequence[Row]) -> list[bool]:
    """Return for each record whether a newer one has its key."""
    return [
        row.has_key
        and any(each.has_key and each.fingerprint == row.fingerprint for each in rows[index + 1 :])
        for index, row in enumerate(rows)
    ]


def contents(columns: Columns) -> list[tuple[list[int], int, int]]:
    words = columns.words[: columns.count * WORDS].reshape(-1, WORDS).tolist()
    offsets, flags = columns.offsets[: columns.count].tolist(), columns.flags[: columns.count].tolist()
    return list(zip(words, offsets, flags, strict=True))


@settings(max_examples=200)
@given(ROWS, st.integers(0, 3))
def test_superseded_records_are_marked_and_removed(rows: list[Row], bits: int) -> None:
    """The hash table is half full at most. One that is longer than necessary decides the same."""
    columns = columns_of(rows)
    section = LongSection()
    if bits:
        section.superseded(columns_of(rows * 2**bits))
    removed = section.superseded(columns)
    assert removed.tolist() == removed_by_newer(rows)
    slots = next(1 << bit for bit in range(1, 99) if 1 << bit >= 2 * len(rows) * 2**bits)
    assert section.nbytes == 4 * slots
    everything = contents(columns)
    remove_records(columns, removed)
    assert contents(columns) == [
        each for each, is_removed in zip(everything, removed.tolist(), strict=True) if not is_removed
    ]


@given(ROWS, st.sampled_from([0, 1, 2, 31, 32]))
def test_a_sample_has_the_keys_with_zeros_in_front_of_the_second_word(rows: list[Row], bits: int) -> None:
    """Nothing is left after as many bits as a word has. Records without a key are in no sample."""
    section = LongSection()
    for _ in range(bits):
        section.halve_sample()
    assert section.is_sampled is (bits > 0)
    expected = [not row.has_key or bits == 32 or row.fingerprint[1] >> (32 - bits) != 0 for row in rows]
    assert section.unsampled(columns_of(rows)).tolist() == expected
    section.begin()
    assert (section.is_sampled, section.nbytes) == (False, 0)


@given(ROWS, st.integers(1, 7))
def test_copies_are_of_the_marked_records_and_bounded(rows: list[Row], most: int) -> None:
    columns = columns_of(rows)
    chosen = np.array([each.distance == 1 for each in rows], np.bool_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("object_format.dedupe.long_sections._COPIED_RECORDS", most)
        copies = [contents(each) for each in copy_records(columns, chosen)]
    assert all(0 < len(each) <= most for each in copies)
    everything = zip(contents(columns), chosen.tolist(), strict=True)
    assert [each for copy in copies for each in copy] == [each for each, is_chosen in everything if is_chosen]


@given(ROWS, st.sampled_from([0, 1, 3, 16]))
def test_a_split_is_a_stable_sort_by_the_leading_bits_of_the_second_word(rows: list[Row], bits: int) -> None:
    """Records without a key belong to the first bucket; the words of those without any key are zeros."""
    columns = columns_of(rows, 100)
    count = len(rows)
    ends = np.empty(1 << bits, np.int64)
    words, packed = np.empty(count * WORDS, np.uint32), np.empty(count, np.uint32)
    split_into_buckets(columns.words, columns.offsets, columns.flags, count, bits, ends, words, packed)
    buckets = [row.fingerprint[1] >> (32 - bits) if row.has_key and bits else 0 for row in rows]
    order = sorted(range(count), key=lambda index: buckets[index])
    assert ends.tolist() == [sum(each <= bucket for each in buckets) for bucket in range(1 << bits)]
    assert words.reshape(-1, WORDS).tolist() == [
        [0, 0, 0] if rows[index].flags & KEYLESS else list(rows[index].fingerprint) for index in order
    ]
    base = int(columns.offsets[0]) if count else 0
    assert packed.tolist() == [int(columns.offsets[index] - base) << 4 | rows[index].flags for index in order]


def fingerprints(
    data: npt.NDArray[np.uint8], starts: Sequence[int], lengths: Sequence[int]
) -> list[list[int]]:
    words = np.zeros((len(starts) + 2) * WORDS, np.uint32)
    fingerprint_keys(
        data, np.array(starts, np.int64), np.array(lengths, np.int64), len(starts), K0, K1, words, 1
    )
    found: list[list[int]] = words.reshape(-1, WORDS).tolist()
    assert found[0] == found[-1] == [0] * WORDS
    return found[1:-1]


LENGTHS = st.one_of(
    st.lists(st.integers(0, 20), max_size=40),
    st.lists(st.sampled_from([0, 1, 7, 8, 9, 15, 16, 63, 400, 3000]), max_size=20),
)


@settings(max_examples=100)
@given(LENGTHS, st.integers(0, 9))
def test_the_fingerprint_of_a_key_does_not_depend_on_its_neighbours(lengths: list[int], before: int) -> None:
    """Keys are hashed alone or side by side. The first word is never 0, which marks an empty slot."""
    data = np.random.default_rng(before).integers(0, 256, before + sum(lengths) + 1, np.uint8)
    starts = [before + sum(lengths[:index]) for index in range(len(lengths))]
    expected = []
    for start, length in zip(starts, lengths, strict=True):
        first, second = (int(each) for each in siphash128(data, start, length, K0, K1))
        expected.append([max(first % 2**32, 1), first >> 32, second % 2**32])
    assert fingerprints(data, starts, lengths) == expected


@settings(max_examples=100)
@given(
    st.lists(st.integers(-1, 4), min_size=1, max_size=4) | st.just([0, 1, 2]),
    st.integers(0, 5),
    st.sampled_from([Codec.NONE, Codec.ZSTD]),
)
def test_offsets_of_records_rise_within_those_of_their_batch(
    deltas: list[int], last: int, codec: Codec
) -> None:
    records = [Record(10 + delta, NOW, b"%d" % index, b"v") for index, delta in enumerate(deltas)]
    batch = model.Batch(
        records=tuple(records),
        base_offset=10,
        last_offset_delta=last,
        attributes=int(codec),
        base_timestamp=NOW,
        max_timestamp=NOW,
    )
    finder = SurvivorFinder(KeyTable(1 << 12), SEED, reaches_log_start=True, now_ms=NOW)
    finder.begin_section(unique_keys=False)
    if deltas == sorted(set(deltas)) and deltas[0] >= 0 and deltas[-1] <= last:
        finder.feed(model.encode(batch), offset_shift=0)
        finder.end_section()
        assert set(finder.finish().offsets) == {10 + delta for delta in deltas}
    else:
        with pytest.raises(MalformedBatchError):
            finder.feed(model.encode(batch), offset_shift=0)
