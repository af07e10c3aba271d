"""Hypothesis strategies for record batches of every shape."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from object_format.codecs.codec import Codec
from object_format.record_batch.records import Record
from tests.object_format import model

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

TIMESTAMPS = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_100_000), st.integers(-1, 10), st.integers(-(2**62), 2**62 - 1)
)
BLOBS = st.one_of(st.none(), st.binary(max_size=12), st.binary(min_size=60, max_size=300))
HEADERS: SearchStrategy[tuple[tuple[str, bytes | None], ...]] = st.one_of(
    st.just(()),
    st.lists(
        st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), st.none() | st.binary(max_size=9)),
        max_size=3,
    ).map(tuple),
)


@st.composite
def record_lists(
    draw: DrawFn,
    *,
    first_offset: int = 0,
    keys: SearchStrategy[bytes | None] = BLOBS,
    values: SearchStrategy[bytes | None] = BLOBS,
    max_count: int = 8,
    gaps: bool = True,
) -> list[Record]:
    """Return records with ascending offsets."""
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 200 if gaps else 0), TIMESTAMPS, keys, values, HEADERS),
            min_size=1,
            max_size=max_count,
        )
    )
    records = []
    offset = first_offset
    for gap, timestamp, key, value, headers in rows:
        records.append(Record(offset, timestamp, key, value, headers))
        offset += 1 + gap
    return records


@st.composite
def batches(draw: DrawFn, *, first_offset: int = 0, gaps: bool = True) -> model.Batch:
    """Return a batch as in a log, possibly without records at its last offsets."""
    batch = model.batch_of(
        draw(record_lists(first_offset=first_offset, gaps=gaps)),
        codec=draw(st.sampled_from(Codec)),
        leader_epoch=draw(st.integers(0, 5)),
    )
    if gaps:
        lost = draw(st.integers(0, 50))
        batch = replace(batch, last_offset_delta=batch.last_offset_delta + lost)
    if draw(st.booleans()):
        batch = replace(batch, producer_id=draw(st.integers(0, 2**40)), producer_epoch=3, base_sequence=7)
    return batch


@st.composite
def logs(draw: DrawFn, *, max_count: int = 6, gaps: bool = True) -> list[model.Batch]:
    """Return consecutive batches."""
    made: list[model.Batch] = []
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, max_count))):
        made.append(draw(batches(first_offset=offset, gaps=gaps)))
        offset = made[-1].next_offset
    return made
