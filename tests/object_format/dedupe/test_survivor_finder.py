"""Pass 1: retained records, the groups of open pieces, samples of keys, and the reported memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from object_format.codecs.codec import Codec, decompress
from object_format.dedupe import EarlyFilter, KeyTable, RewriteOptions, SurvivorFinder, survivor_finder
from object_format.errors import MalformedBatchError
from object_format.record_batch.records import encode_batch
from tests.object_format.dedupe.test_dedupe import LARGE, NOW, SEED
from tests.object_format.dedupe.test_kernel_models import fingerprints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from object_format.dedupe.early_filter import RetainedPiece
    from object_format.record_batch.decompression import OpenRuns

RECORD_BYTES = 21
"""Memory of a retained record."""


class ObservedFilter(EarlyFilter):
    """Early filter that counts the pieces that are open together, newest first, and those that do not fit."""

    def __init__(self, *, open_bytes: int = 1 << 20, output_bytes: int = 1 << 20) -> None:
        super().__init__(open_bytes=open_bytes, output_bytes=output_bytes)
        self.begin_partition(RewriteOptions(delete_horizon_ms=None))
        self.groups: list[int] = []
        self._opened = 0
        self.refused = 0

    @override
    def open(self, piece: RetainedPiece) -> OpenRuns | None:
        runs = super().open(piece)
        self._opened += runs is not None
        self.refused += runs is None
        return runs

    @override
    def close(self) -> None:
        self.groups.append(self._opened)
        self._opened = 0
        super().close()

    @property
    def done(self) -> list[bool]:
        """Tell for each piece of the last section whether it was filtered."""
        return [piece is not None for piece in self.sections[-1].pieces]


def batch(keys: Sequence[int], base: int, codec: Codec = Codec.NONE) -> bytes:
    """Return a batch whose values and keys have the same sizes for all keys below 1000."""
    return encode_batch(
        [NOW] * len(keys), [b"%03d" % key for key in keys], [b"v"] * len(keys), base_offset=base, codec=codec
    )


def opened_size(stored: bytes) -> int:
    return memoryview(decompress(Codec(stored[22] & 7), stored[61:])).nbytes


def finder_of(*, max_retained: int = 1000, early_filter: EarlyFilter | None = None) -> SurvivorFinder:
    return SurvivorFinder(
        LARGE,
        SEED,
        reaches_log_start=True,
        now_ms=NOW,
        max_retained_records=max_retained,
        early_filter=early_filter,
    )


def feed(finder: SurvivorFinder, pieces: Sequence[bytes]) -> None:
    """Feed a section."""
    finder.begin_section(unique_keys=False)
    for piece in pieces:
        finder.feed(piece, offset_shift=0)
    finder.end_section()


@pytest.fixture(autouse=True)
def few_records_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survivor_finder, "_STEP_RECORDS", 4)


@pytest.mark.parametrize(
    ("count", "buffer_bytes"),
    [
        (0, 4 * RECORD_BYTES),
        (4, 4 * RECORD_BYTES),
        (5, 8 * RECORD_BYTES),
        (10, 10 * RECORD_BYTES),
        (11, 10 * RECORD_BYTES + 4 * 32),
    ],
)
def test_retained_records_take_memory(count: int, buffer_bytes: int) -> None:
    """More than ten need a hash table of 32 slots, for those that newer ones supersede."""
    finder = finder_of(max_retained=10)
    feed(finder, [batch([offset % 2 for offset in range(count)], 0)] if count else [])
    found = finder.finish()
    assert (found.records_in, found.max_buffer_bytes) == (count, buffer_bytes)


@pytest.mark.parametrize(("unique_keys", "no_older_records"), [(True, False), (False, True)])
def test_records_of_distinct_keys_are_not_retained(*, unique_keys: bool, no_older_records: bool) -> None:
    finder = finder_of()
    finder.begin_section(unique_keys=unique_keys, no_older_records=no_older_records)
    finder.feed(batch(range(50), 0), offset_shift=0)
    finder.end_section()
    found = finder.finish()
    assert (found.records_out, found.max_buffer_bytes) == (50, 4 * RECORD_BYTES)


@pytest.mark.parametrize("step", [1, 3, 4, 100])
def test_a_full_table_has_the_keys_of_the_lowest_offsets_of_a_unique_section(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expired tombstone is dropped if its key fits."""
    monkeypatch.setattr(survivor_finder, "_STEP_RECORDS", step)
    table = KeyTable(64 * 12)
    count = 2 * table.capacity
    finder = SurvivorFinder(table, SEED, reaches_log_start=True, now_ms=NOW)
    finder.begin_section(unique_keys=True)
    keys = [b"%d" % each for each in range(count)]
    data = encode_batch([NOW] * count, keys, [None] * count, delete_horizon_ms=NOW)
    finder.feed(data, offset_shift=0)
    finder.end_section()
    found = finder.finish()
    assert found.keys == table.capacity
    assert set(found.offsets) == set(range(table.capacity, count))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
@pytest.mark.parametrize("count", [3, 10])
def test_open_pieces_take_memory_next_to_retained_records(count: int, codec: Codec) -> None:
    finder = finder_of(early_filter=ObservedFilter())
    piece = batch(range(count), 5, codec)
    feed(finder, [batch(range(5), 0), piece])
    assert finder.finish().max_buffer_bytes == (8 + max(count, 4)) * RECORD_BYTES > opened_size(piece)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_of_the_memory_for_open_pieces_only_the_used_part_is_reported(codec: Codec) -> None:
    pieces = [
        encode_batch([NOW], [b"%d" % offset], [bytes(1000)], base_offset=offset, codec=codec)
        for offset in range(3)
    ]
    finder = finder_of(early_filter=ObservedFilter())
    feed(finder, pieces)
    assert finder.finish().max_buffer_bytes == sum(map(opened_size, pieces))


def test_a_large_batch_determines_the_memory() -> None:
    finder = finder_of()
    data = batch(range(3), 0, Codec.GZIP)
    feed(finder, [data])
    large = encode_batch([NOW], [b"large"], [bytes(10_000)], base_offset=3, codec=Codec.GZIP)
    feed(finder_large := finder_of(), [large])
    assert finder.finish().max_buffer_bytes == 4 * RECORD_BYTES > opened_size(data)
    assert finder_large.finish().max_buffer_bytes == opened_size(large)


@pytest.mark.parametrize(("more", "groups"), [(0, [2, 2, 1]), (-1, [1] * 5)])
@pytest.mark.parametrize("is_by_size", [True, False])
def test_adjacent_pieces_are_opened_together_up_to_a_limit(
    more: int, groups: list[int], monkeypatch: pytest.MonkeyPatch, *, is_by_size: bool
) -> None:
    """The limit is their stored size, or the number of their records."""
    pieces = [batch(range(100, 110), 10 * number, Codec.LZ4) for number in range(5)]
    (size,) = set(map(len, pieces))
    if is_by_size:
        monkeypatch.setattr(survivor_finder, "_GROUP_BYTES", 2 * size + more)
        monkeypatch.setattr(survivor_finder, "_STEP_RECORDS", 1000)
    else:
        monkeypatch.setattr(survivor_finder, "_STEP_RECORDS", 2 * 10 + more)
    early_filter = ObservedFilter()
    feed(finder_of(early_filter=early_filter), pieces)
    assert early_filter.groups == groups
    assert all(early_filter.done)


def test_pieces_with_other_records_between_them_are_opened_separately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(survivor_finder, "_STEP_RECORDS", 1000)
    early_filter = ObservedFilter()
    compressed = [batch([number], number, Codec.ZSTD) for number in range(6)]
    finder = finder_of(early_filter=early_filter)
    feed(finder, [*compressed[:2], batch([3], 2), *compressed[3:]])
    assert early_filter.groups == [3, 2]
    assert finder.finish().records_out == 5


def test_a_piece_that_does_not_fit_is_decided_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass 2 reads it again."""
    monkeypatch.setattr(survivor_finder, "_STEP_RECORDS", 1000)
    counts = (10, 10, 300, 10, 10)
    pieces = [batch(range(count), sum(counts[:number]), Codec.ZSTD) for number, count in enumerate(counts)]
    early_filter = ObservedFilter(open_bytes=opened_size(pieces[2]) - 1)
    finder = finder_of(early_filter=early_filter)
    feed(finder, pieces)
    assert early_filter.groups == [2, 0, 2]
    assert early_filter.done == [True, True, False, True, True]
    assert early_filter.refused == 2
    assert finder.finish().records_out == 300


@pytest.mark.parametrize(("more", "done"), [(0, True), (-1, False)])
@pytest.mark.parametrize("is_retained", [True, False])
def test_a_batch_that_needs_the_memory_of_open_pieces_gives_up_the_partition(
    more: int, monkeypatch: pytest.MonkeyPatch, *, done: bool, is_retained: bool
) -> None:
    """It is opened at the end of the section, or at once if its stored form does not fit."""
    small, large = batch(range(10), 0, Codec.GZIP), batch(range(300), 10, Codec.GZIP)
    size = opened_size(large)
    monkeypatch.setattr(survivor_finder, "MAX_OPEN_BYTES", size + more)
    early_filter = ObservedFilter(open_bytes=size - 1, output_bytes=1 << 20 if is_retained else len(large))
    finder = finder_of(early_filter=early_filter)
    feed(finder, [small, large])
    assert early_filter.done == [done, False]
    assert early_filter.refused == is_retained
    assert set(finder.finish().offsets) == set(range(10, 310))


@pytest.mark.parametrize("unique_keys", [True, False])
def test_an_error_has_an_origin_if_the_caller_does_not_know_it(*, unique_keys: bool) -> None:
    """Pieces with unique keys are filtered at once."""
    finder = finder_of(early_filter=ObservedFilter())
    finder.begin_section(unique_keys=unique_keys)
    broken = bytearray(batch(range(5), 5, Codec.ZSTD))
    broken[-9:] = bytes(9)

    def feed_and_end() -> None:
        finder.feed(bytes(broken), offset_shift=0, origin="there")
        finder.end_section()

    with pytest.raises(MalformedBatchError) as caught:
        feed_and_end()
    assert caught.value.origin == ("" if unique_keys else "there")


PIECES = st.lists(
    st.tuples(
        st.sampled_from([Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.GZIP]),
        st.lists(st.integers(0, 2), min_size=1, max_size=6),
    ),
    min_size=2,
    max_size=9,
)


def stored_pieces(pieces: Sequence[tuple[Codec, Sequence[int]]]) -> list[bytes]:
    bases = np.cumsum([0, *(len(keys) for _, keys in pieces)]).tolist()
    return [batch(keys, base, codec) for (codec, keys), base in zip(pieces, bases, strict=False)]


@settings(max_examples=100)
@given(PIECES, st.integers(4, 12), st.booleans())
def test_a_long_section_of_few_keys_between_pieces_is_exact(
    pieces: list[tuple[Codec, list[int]]], max_retained: int, has_memory: bool
) -> None:
    """Superseded records are removed between the pieces that wait for the end of the section."""
    early_filter = ObservedFilter(open_bytes=1 << 20 if has_memory else 1)
    finder = finder_of(max_retained=max_retained, early_filter=early_filter)
    feed(finder, stored_pieces(pieces))
    found = finder.finish()
    everything = [key for _, keys in pieces for key in keys]
    newest = {key: offset for offset, key in enumerate(everything)}
    assert set(found.offsets) == set(newest.values())
    assert (found.records_in, found.exact) == (len(everything), True)


def words_of(keys: Sequence[int]) -> list[int]:
    """Return the second words of fingerprints, whose leading zeros select the sample."""
    data = np.frombuffer(b"".join(b"%03d" % key for key in keys), np.uint8)
    return [words[1] for words in fingerprints(data, range(0, 3 * len(keys), 3), [3] * len(keys))]


def sampled_survivors(keys: Sequence[int], most: int) -> set[int]:
    """Return the surviving offsets of one section whose keys are sampled, as `long_sections` says."""
    words = dict(zip(keys, words_of(keys), strict=True))
    retained: dict[int, int] = {}
    unsampled: set[int] = set()
    bits = 0

    def newest(offsets: Sequence[int]) -> dict[int, int]:
        last = {keys[offset]: offset for offset in offsets}
        return {offset: key for key, offset in last.items()}

    def leave_sample() -> None:
        for offset, key in list(retained.items()):
            if bits and words[key] >> (32 - bits):
                unsampled.add(offset)
                del retained[offset]

    for offset, key in enumerate(keys):
        if len(retained) == most:
            retained = newest(list(retained))
            leave_sample()
            while len(retained) > 3 * most // 4:
                bits += 1
                leave_sample()
        retained[offset] = key
    return unsampled | set(newest(list(retained)))


@settings(max_examples=200)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=120), st.integers(4, 24))
def test_the_keys_of_a_long_section_are_sampled(keys: list[int], most: int) -> None:
    """The sample is halved until a quarter of the space is free."""
    finder = finder_of(max_retained=most)
    feed(finder, [batch(keys, 0)])
    found = finder.finish()
    assert set(found.offsets) == sampled_survivors(keys, most)
    assert found.records_in == len(keys)
