"""The early filter writes exactly the same bytes as pass 2, for any amount of memory."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_format.codecs.codec import Codec, decompress
from object_format.dedupe import (
    EarlyFilter,
    KeyTable,
    RewriteOptions,
    SurvivorFinder,
    Survivors,
    filter_batches,
)
from object_format.errors import MalformedBatchError
from object_format.kernels.batches.layout import BATCH_ROW
from object_format.record_batch.decompression import Scratch
from object_format.record_batch.records import encode_batch
from tests.object_format.dedupe.test_dedupe import FEW_KEYS, LARGE, NOW, SEED, check_survivors, sections
from tests.object_format.scratch_memory import limit_scratch_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from object_format.dedupe import FilteredBatches
    from tests.object_format.model_log import Section

MANY_KEYS = st.binary(min_size=1, max_size=2)
NO_MEMORY = 1
ENOUGH_MEMORY = 1 << 20


class Memory(NamedTuple):
    """Limits of the early filter and of what it depends on, in bytes."""

    retained: int = ENOUGH_MEMORY
    open: int = ENOUGH_MEMORY
    output: int = ENOUGH_MEMORY
    scratch: int = ENOUGH_MEMORY
    group: int = ENOUGH_MEMORY


def pieces_of(section: Section) -> list[bytes]:
    """Return the section's batches in pieces of two."""
    stored = section.stored()
    return [b"".join(stored[at : at + 2]) for at in range(0, len(stored), 2)]


def find_with_early_filter(
    log: Sequence[Section], early_filter: EarlyFilter, *, table: KeyTable, whole: bool, max_retained: int
) -> Survivors:
    finder = SurvivorFinder(
        table,
        SEED,
        reaches_log_start=whole,
        now_ms=NOW,
        max_retained_records=max_retained,
        early_filter=early_filter,
    )
    for section in reversed(log):
        finder.begin_section(unique_keys=section.unique_keys)
        for piece in pieces_of(section):
            finder.feed(piece, offset_shift=section.shift, leader_epoch=3)
        finder.end_section()
    return finder.finish()


def contents(filtered: FilteredBatches) -> tuple[object, ...]:
    """Return all of a result, independent of its division into buffers."""
    return (
        b"".join(filtered.buffers),
        filtered.size,
        filtered.batch_count,
        filtered.record_count,
        filtered.min_timestamp,
        filtered.max_timestamp,
        filtered.merged_bytes_saved,
    )


def test_a_full_table_takes_the_keys_of_a_unique_section_in_their_order() -> None:
    """An expired tombstone is dropped if its key fits. The early filter takes compressed pieces only."""
    codecs = (Codec.NONE, Codec.ZSTD)
    count = 7
    found = []
    for early_filter in (EarlyFilter(), None):
        table = KeyTable(16 * 12)
        assert count < table.capacity < len(codecs) * count
        finder = SurvivorFinder(table, SEED, reaches_log_start=True, now_ms=NOW, early_filter=early_filter)
        if early_filter is not None:
            early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
        finder.begin_section(unique_keys=True)
        for number, codec in enumerate(codecs):
            keys = [b"%d-%d" % (number, each) for each in range(count)]
            batch = encode_batch(
                [NOW] * count,
                keys,
                [None] * count,
                codec=codec,
                base_offset=number * count,
                delete_horizon_ms=NOW - 1,
            )
            finder.feed(batch, offset_shift=0)
        finder.end_section()
        found.append(finder.finish())
    assert replace(found[0], max_buffer_bytes=0) == replace(found[1], max_buffer_bytes=0)
    assert len(found[1].offsets) == found[1].keys_outside_table > 0


@given(
    sections(keys=FEW_KEYS) | sections(keys=MANY_KEYS),
    st.builds(
        RewriteOptions,
        delete_horizon_ms=st.sampled_from([None, NOW + 9]),
        merged_codec=st.none() | st.sampled_from(Codec),
        max_batch_bytes=st.sampled_from([None, 200, 800]),
    ),
    st.just(Memory())
    | st.builds(
        Memory,
        retained=st.sampled_from([NO_MEMORY, 700, 2000, ENOUGH_MEMORY]),
        open=st.sampled_from([NO_MEMORY, 150, 600, ENOUGH_MEMORY]),
        output=st.sampled_from([NO_MEMORY, 100, 400, ENOUGH_MEMORY]),
        scratch=st.sampled_from([150, 600, ENOUGH_MEMORY]),
        group=st.sampled_from([NO_MEMORY, 300, ENOUGH_MEMORY]),
    ),
    st.sampled_from([KeyTable(16 * 12), LARGE]),
    st.sampled_from([2, 1_000_000]),
)
def test_early_filter_writes_the_same_as_pass_2(
    log: list[Section], options: RewriteOptions, memory: Memory, table: KeyTable, max_retained: int
) -> None:
    """This includes full tables, little memory, and sections that are too long to retain."""
    with pytest.MonkeyPatch.context() as patch:
        limit_scratch_memory(patch, memory.scratch)
        patch.setattr("object_format.dedupe.survivor_finder._GROUP_BYTES", memory.group)
        patch.setattr("object_format.dedupe.survivor_finder._STEP_RECORDS", min(max_retained, 32_768))
        early_filter = EarlyFilter(
            retained_bytes=memory.retained, open_bytes=memory.open, output_bytes=memory.output
        )
        early_filter.begin_partition(options)
        whole = options.delete_horizon_ms is not None
        survivors = find_with_early_filter(
            log, early_filter, table=table, whole=whole, max_retained=max_retained
        )
        assert early_filter.peak_bytes <= memory.retained + memory.open + memory.output
        assert len(early_filter.sections) == len(log)
        check_survivors(log, survivors, whole=whole)
        horizon = options.delete_horizon_ms if survivors.exact else None
        for section, done in zip(reversed(log), early_filter.sections, strict=True):
            pieces = pieces_of(section)
            assert len(done.pieces) == len(pieces)
            for piece, made in zip(pieces, done.pieces, strict=True):
                if made is None:
                    continue
                assert contents(made.filtered) == contents(
                    filter_batches(
                        piece,
                        survivors,
                        offset_shift=section.shift,
                        leader_epoch=3,
                        delete_horizon_ms=horizon,
                        merged_codec=options.merged_codec,
                        max_batch_bytes=options.max_batch_bytes,
                        scratch=Scratch(),
                    )
                )


def compressed(keys: Sequence[int], base: int, codec: Codec, *, tombstones: bool = False) -> bytes:
    values = [None if tombstones else b"value %d" % key for key in keys]
    return encode_batch(
        [NOW] * len(keys), [b"%d" % key for key in keys], values, base_offset=base, codec=codec
    )


def run(
    early_filter: EarlyFilter,
    log: Sequence[Sequence[bytes]],
    table: KeyTable = LARGE,
    *,
    unique_keys: bool = False,
) -> Survivors:
    """Feed sections of pieces, oldest first."""
    finder = SurvivorFinder(table, SEED, reaches_log_start=True, now_ms=NOW, early_filter=early_filter)
    for section in reversed(log):
        finder.begin_section(unique_keys=unique_keys)
        for piece in section:
            finder.feed(piece, offset_shift=0)
        finder.end_section()
    return finder.finish()


def done_pieces(early_filter: EarlyFilter) -> list[list[bool]]:
    """Return for each piece of each section, newest first, whether it was filtered."""
    return [[piece is not None for piece in section.pieces] for section in early_filter.sections]


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_compressed_sections_are_complete_after_pass_1(codec: Codec) -> None:
    log = [[compressed(range(100), 100 * n, codec)] for n in range(3)]
    early_filter = EarlyFilter()
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=NOW))

    run(early_filter, log)

    assert all(section.is_complete for section in early_filter.sections)
    newest, *older = (piece for section in early_filter.sections for piece in section.pieces)
    assert newest is not None
    assert (newest.records_in, newest.filtered.record_count) == (100, 100)
    assert b"".join(newest.filtered.buffers) == log[-1][0]
    assert all(piece is not None and piece.filtered.buffers == () for piece in older)


def test_uncompressed_pieces_are_left_to_pass_2() -> None:
    early_filter = EarlyFilter()
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
    run(early_filter, [[compressed(range(10), 0, Codec.NONE), compressed(range(10), 10, Codec.ZSTD)]])
    assert [piece is None for piece in early_filter.sections[0].pieces] == [True, False]
    assert not early_filter.sections[0].is_complete


@pytest.mark.parametrize(("more", "is_complete"), [(0, True), (-1, False)])
def test_a_partition_with_a_larger_piece_than_the_limit_is_left_to_pass_2(
    more: int, *, is_complete: bool
) -> None:
    pieces = [compressed(range(100 * n, 100 * n + 100), 100 * n, Codec.ZSTD) for n in range(3)]
    early_filter = EarlyFilter()
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("object_format.dedupe.early_filter.MAX_PIECE_BYTES", max(map(len, pieces)) + more)
        run(early_filter, [pieces])
    assert early_filter.sections[0].is_complete is is_complete


@pytest.mark.parametrize(
    ("counts", "codec", "done"),
    [
        ([100], Codec.ZSTD, [True, True]),
        ([60, 41], Codec.ZSTD, [True, False]),
        ([100, 1], Codec.ZSTD, [True, False]),
        ([101], Codec.ZSTD, [False, False]),
        ([101], Codec.NONE, [True, False]),
    ],
)
def test_a_batch_of_too_many_records_leaves_its_partition_to_pass_2(
    counts: list[int], codec: Codec, done: list[bool]
) -> None:
    """Several batches with so many records leave only their piece to pass 2."""
    bases = [5 + sum(counts[:number]) for number in range(len(counts))]
    batches = [
        compressed(range(base, base + count), base, codec) for base, count in zip(bases, counts, strict=True)
    ]
    early_filter = EarlyFilter()
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("object_format.dedupe.early_filter.MAX_RECORDS", 100)
        run(early_filter, [[compressed(range(5), 0, Codec.ZSTD), b"".join(batches)]])
    assert [piece is not None for piece in early_filter.sections[0].pieces] == done


@pytest.mark.parametrize(("more", "done"), [(0, [True, True]), (-1, [True, False])])
def test_pieces_may_fill_the_output(more: int, done: list[bool]) -> None:
    """All of their records survive, so they are written as they are."""
    pieces = [compressed(range(100 * n, 100 * n + 100), 100 * n, Codec.ZSTD) for n in range(2)]
    early_filter = EarlyFilter(output_bytes=sum(map(len, pieces)) + more)
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
    run(early_filter, [pieces])
    assert [piece is not None for piece in early_filter.sections[0].pieces] == done


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_a_piece_that_grows_leaves_space_for_the_stored_form_of_older_ones(codec: Codec) -> None:
    """Merged batches become uncompressed. The newest piece is filtered first."""
    batches = [
        encode_batch([NOW], [b"%d" % offset], [bytes(1000)], base_offset=offset, codec=codec)
        for offset in range(4)
    ]
    pieces = [b"".join(batches[:2]), b"".join(batches[2:])]
    merged = encode_batch([NOW] * 2, [b"2", b"3"], [bytes(1000)] * 2)
    for output_bytes, done in (
        (len(merged) + len(pieces[0]), [False, True]),
        (len(merged) + len(pieces[0]) - 1, [True, False]),
        (2 * len(merged), [True, True]),
    ):
        early_filter = EarlyFilter(output_bytes=output_bytes)
        early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None, merged_codec=Codec.NONE))
        run(early_filter, [pieces])
        assert done_pieces(early_filter) == [done]


@pytest.mark.parametrize("is_output", [True, False])
def test_all_pieces_after_one_that_does_not_fit_are_left_to_pass_2(*, is_output: bool) -> None:
    """The next one is small, and would fit."""
    pieces = [compressed(range(base, base + 100), base, Codec.LZ4) for base in (0, 100)]
    pieces.append(compressed([200], 200, Codec.LZ4))
    left = len(pieces[1]) - 1
    early_filter = (
        EarlyFilter(output_bytes=len(pieces[0]) + left)
        if is_output
        else EarlyFilter(retained_bytes=len(pieces[0]) + left + 2 * BATCH_ROW.itemsize)
    )
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
    run(early_filter, [pieces])
    assert len(pieces[2]) < left
    assert done_pieces(early_filter) == [[True, False, False]]
    first_only = EarlyFilter()
    first_only.begin_partition(RewriteOptions(delete_horizon_ms=None))
    run(first_only, [pieces[:1]])
    assert early_filter.peak_bytes == first_only.peak_bytes


def test_a_piece_that_does_not_fit_does_not_affect_earlier_ones() -> None:
    pieces = [compressed(range(100 * n, 100 * n + 100), 100 * n, Codec.ZSTD) for n in range(9)]
    early_filter = EarlyFilter(output_bytes=4 * max(map(len, pieces)))
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
    run(early_filter, [pieces])
    done = [piece is not None for piece in early_filter.sections[0].pieces]
    assert done == sorted(done, reverse=True)
    assert 4 <= sum(done) < 9


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("horizon", [NOW + 9, None])
def test_pieces_with_delete_horizons_are_discarded_if_survivors_are_not_exact(
    count: int, horizon: int | None
) -> None:
    """Pieces without tombstones are kept, and all of them if tombstones get no horizon."""
    newer = [compressed(range(count), 1000, Codec.ZSTD, tombstones=True), compressed([7], 1005, Codec.ZSTD)]
    older = [compressed(range(10, 300), 0, Codec.ZSTD)]
    for table, is_exact in ((LARGE, True), (KeyTable(16 * 12), False)):
        early_filter = EarlyFilter()
        early_filter.begin_partition(RewriteOptions(delete_horizon_ms=horizon))
        survivors = run(early_filter, [older, newer], table)
        assert survivors.exact is is_exact
        assert done_pieces(early_filter) == [[is_exact or horizon is None, True], [True]]


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
@pytest.mark.parametrize("horizon", [None, NOW + 9, 0])
def test_pieces_that_are_open_together_are_filtered_like_in_pass_2(codec: Codec, horizon: int | None) -> None:
    """One loses all of its records, and two lose some."""
    pieces = [
        encode_batch(
            [NOW] * 100,
            [b"%d" % (first + each) for each in range(100)],
            [None if each % 50 == 0 else b"value" for each in range(100)],
            base_offset=100 * number,
            codec=codec,
        )
        for number, first in enumerate((0, 60, 60, 150))
    ]
    early_filter = EarlyFilter()
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=horizon))
    survivors = run(early_filter, [pieces])
    for piece, made in zip(pieces, early_filter.sections[0].pieces, strict=True):
        expected = filter_batches(
            piece, survivors, offset_shift=0, leader_epoch=0, delete_horizon_ms=horizon, scratch=Scratch()
        )
        assert made is not None
        assert contents(made.filtered) == contents(expected)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_kernels_filter_all_pieces_of_some_codecs(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """These pieces keep all, some and none of their records. `peak_bytes` includes their memory."""
    monkeypatch.delattr("object_format.dedupe.early_filter.filter_rows")
    pieces = [compressed(range(first, 100), 100 * number, codec) for number, first in enumerate((0, 50, 0))]
    early_filter = EarlyFilter()
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
    run(early_filter, [[*pieces, compressed(range(20), 300, codec)]])
    made = [piece.filtered for piece in early_filter.sections[0].pieces if piece is not None]
    assert [each.record_count for each in made] == [0, 0, 80, 20]
    assert {each.buffer_bytes for each in made} == {0}


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_the_open_memory_is_used_again_for_the_next_pieces(codec: Codec) -> None:
    """Pieces are opened one by one here."""
    pieces = [compressed(range(100 * n, 100 * n + 100), 100 * n, codec) for n in range(1, 4)]
    (opened,) = {memoryview(decompress(codec, piece[61:])).nbytes for piece in pieces}
    for open_bytes, done in ((opened, True), (opened - 1, False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("object_format.dedupe.survivor_finder._GROUP_BYTES", 1)
            early_filter = EarlyFilter(open_bytes=open_bytes)
            early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
            run(early_filter, [pieces])
        assert done_pieces(early_filter) == [[done] * 3]


def test_a_partition_that_is_given_up_frees_the_memory() -> None:
    """Newer sections are left to pass 2, too. Other partitions keep the memory for the next one."""
    size = (3 + 5 + 7) << 20
    newer, older = ([compressed(range(100), base, Codec.ZSTD)] for base in (100, 0))
    tracemalloc.start()
    try:
        early_filter = EarlyFilter(retained_bytes=3 << 20, open_bytes=5 << 20, output_bytes=7 << 20)
        early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
        run(early_filter, [older, newer])
        kept = tracemalloc.get_traced_memory()[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("object_format.dedupe.early_filter.MAX_PIECE_BYTES", len(newer[0]))
            early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
            run(early_filter, [[b"".join(older + newer)], newer])
        freed = kept - tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert done_pieces(early_filter) == [[False], [False]]
    assert kept > size
    assert freed > 0.99 * size


@given(
    st.lists(st.integers(1, 300), min_size=3, max_size=12),
    st.integers(200, 900),
    st.sampled_from([Codec.LZ4, Codec.ZSTD]),
)
def test_batches_are_merged_within_the_same_chunks_as_in_pass_2(
    lengths: list[int], scratch_bytes: int, codec: Codec
) -> None:
    """Chunks depend on what fits into the scratch memory, and batches are merged within chunks."""
    old = b"".join(
        encode_batch(
            [NOW, NOW], [b"a%d" % n, b"b%d" % n], [b"v" * length] * 2, base_offset=2 * n, codec=codec
        )
        for n, length in enumerate(lengths)
    )
    new = encode_batch(
        [NOW] * len(lengths), [b"a%d" % n for n in range(len(lengths))], [b"w"] * len(lengths), base_offset=50
    )
    with pytest.MonkeyPatch.context() as patch:
        limit_scratch_memory(patch, scratch_bytes)
        early_filter = EarlyFilter()
        early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
        survivors = run(early_filter, [[old], [new]])
        assert survivors.records_out == 2 * len(lengths)
        (made,) = early_filter.sections[1].pieces
        expected = filter_batches(
            old, survivors, offset_shift=0, leader_epoch=0, delete_horizon_ms=None, scratch=Scratch()
        )
        if made is None:  # a batch does not fit into the scratch memory
            assert 2 * max(lengths) > scratch_bytes - 40
        else:
            assert contents(made.filtered) == contents(expected)


def test_rows_count_as_retained_memory() -> None:
    """For batches of one small record, rows take most of the memory."""
    batches = [compressed([n], n, Codec.ZSTD) for n in range(200)]
    taken = sum(map(len, batches)) + len(batches) * BATCH_ROW.itemsize
    assert BATCH_ROW.itemsize > max(map(len, batches))
    for retained_bytes, done in ((taken, True), (taken - 1, False)):
        early_filter = EarlyFilter(retained_bytes=retained_bytes)
        early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
        run(early_filter, [[b"".join(batches[:100]), b"".join(batches[100:])]])
        assert done_pieces(early_filter) == [[True, done]]


@pytest.mark.parametrize(("more", "done"), [(0, True), (-1, False)])
def test_only_the_rows_of_pieces_with_unique_keys_are_retained(more: int, *, done: bool) -> None:
    """They are filtered at once, so their bytes are not copied."""
    batches = [compressed([n], n, Codec.ZSTD) for n in range(10)]
    early_filter = EarlyFilter(retained_bytes=10 * BATCH_ROW.itemsize + more)
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
    run(early_filter, [[b"".join(batches)]], unique_keys=True)
    assert done_pieces(early_filter) == [[done]]


def test_no_memory_is_in_use_before_the_first_piece() -> None:
    early_filter = EarlyFilter()
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
    run(early_filter, [[compressed(range(10), 0, Codec.NONE)]])
    assert early_filter.peak_bytes == 0


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_peak_bytes_include_all_pieces_that_are_open_together(codec: Codec) -> None:
    """All survive. Those of some codecs are written uncompressed before they are stored."""
    pieces = [compressed(range(100 * n, 100 * n + 50 * n), 100 * n, codec) for n in range(1, 4)]
    early_filter = EarlyFilter()
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
    run(early_filter, [pieces])
    stored = sum(map(len, pieces))
    opened = sum(memoryview(decompress(codec, piece[61:])).nbytes for piece in pieces)
    copied = max(map(len, pieces)) if codec in {Codec.LZ4, Codec.ZSTD} else 0
    assert early_filter.peak_bytes == 2 * stored + 3 * BATCH_ROW.itemsize + opened + copied


def test_of_the_memory_for_open_pieces_only_the_used_part_is_reported() -> None:
    """A piece is opened, and its result is planned for all of its records."""
    piece = compressed(range(100), 0, Codec.GZIP)
    early_filter = EarlyFilter()
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
    run(early_filter, [[piece, compressed([5], 100, Codec.NONE)]])
    made = early_filter.sections[0].pieces[0]
    assert made is not None
    assert made.filtered.buffer_bytes == 61 + 2 * memoryview(decompress(Codec.GZIP, piece[61:])).nbytes


def test_peak_bytes_include_temporary_output() -> None:
    """Survivors are written behind the open records before they are compressed."""
    batches = [compressed(range(100), 0, Codec.ZSTD), compressed(range(50), 100, Codec.ZSTD)]
    early_filter = EarlyFilter()
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None, merge=False))
    run(early_filter, [[b"".join(batches)]])
    (piece,) = early_filter.sections[0].pieces
    assert piece is not None
    data = b"".join(piece.filtered.buffers)
    filtered = data[: len(data) - len(batches[1])]
    retained = sum(map(len, batches)) + 2 * BATCH_ROW.itemsize
    opened = sum(memoryview(decompress(Codec.ZSTD, batch[61:])).nbytes for batch in batches)
    worked = 61 + memoryview(decompress(Codec.ZSTD, filtered[61:])).nbytes + len(batches[1])
    assert early_filter.peak_bytes == retained + opened + worked + len(data)


def test_peak_bytes_include_temporary_output_that_does_not_fit() -> None:
    """The second batch is not written behind the first one then, and the piece is filtered in another way."""
    batches = [compressed(range(100 * n, 100 * n + 100), 100 * n, Codec.ZSTD) for n in range(2)]
    newer = compressed([0, 100], 200, Codec.NONE)
    opened = [memoryview(decompress(Codec.ZSTD, batch[61:])).nbytes for batch in batches]
    written = 61 + opened[0] - (len(compressed([0], 0, Codec.NONE)) - 61)
    with pytest.MonkeyPatch.context() as patch:
        limit_scratch_memory(patch, 1)
        early_filter = EarlyFilter(open_bytes=sum(opened) + written + 61 + opened[1] - 1)
        early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None, merge=False))
        run(early_filter, [[b"".join(batches)], [newer]])
    (piece,) = early_filter.sections[1].pieces
    assert piece is not None
    retained = sum(map(len, batches)) + 2 * BATCH_ROW.itemsize
    assert early_filter.peak_bytes == retained + sum(opened) + written + piece.filtered.size


def test_a_section_need_not_fit_into_the_open_memory() -> None:
    """Each piece is opened separately. Only a piece that is too large is left to pass 2."""
    small = [compressed(range(100 * n, 100 * n + 100), 100 * n, Codec.ZSTD) for n in range(5)]
    large = compressed(range(2000), 500, Codec.ZSTD)
    early_filter = EarlyFilter(open_bytes=4_000)
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
    survivors = run(early_filter, [[*small, large]])
    assert survivors.records_out == 2000
    assert [piece is None for piece in early_filter.sections[0].pieces] == [False] * 5 + [True]


def test_errors_at_the_end_of_a_section_name_the_origin() -> None:
    """Malformed records in retained pieces are detected at the end of the section."""
    valid = compressed(range(5), 0, Codec.ZSTD)
    broken = bytearray(compressed(range(5), 5, Codec.ZSTD))
    broken[-9:] = bytes(9)
    early_filter = EarlyFilter()
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=None))
    finder = SurvivorFinder(LARGE, SEED, reaches_log_start=True, now_ms=NOW, early_filter=early_filter)
    finder.begin_section(unique_keys=False)
    finder.feed(valid, offset_shift=0, origin="here")
    finder.feed(bytes(broken), offset_shift=0, origin="there")
    with pytest.raises(
        MalformedBatchError, match=r"^malformed record batch at byte 0: the compressed"
    ) as caught:
        finder.end_section()
    assert caught.value.origin == "there"
