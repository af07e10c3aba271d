"""Bulk assignment gives the same results as assignment section by section."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from catalog.commit.assignment import assign_section, extents_of_section
from catalog.commit.bulk_assignment import LockedPartitions, SingleRuns
from catalog.commit.sequences import BATCH, ProducerState
from catalog.model import BatchRun, SectionCommit
from tests.catalog.scene import run_of, runs_of

_TOP = 2**31 - 1


@dataclass
class Given:
    """Runs of a section, the locked row of its partition, and a state per producer."""

    runs: tuple[BatchRun, ...]
    row: tuple[int, int, int, int, int] | None
    states: dict[int, ProducerState]


_sequences = st.one_of(st.integers(0, 4), st.integers(_TOP - 4, _TOP))
_batches = st.lists(st.tuples(_sequences, _sequences, st.integers(0, 2**40)), min_size=1, max_size=5)
_states = st.builds(
    lambda epoch, batches: ProducerState(epoch, b"".join(BATCH.pack(*batch) for batch in batches)),
    st.integers(0, 1),
    _batches,
)
_rows = st.tuples(
    st.integers(0, 9), st.integers(10, 2**40), st.integers(-1, 3), st.integers(-1, 99), st.integers(0, 3)
)
_PRODUCERS = (1, 2)


@st.composite
def _runs(draw: st.DrawFn, states: dict[int, ProducerState]) -> BatchRun:
    """Return a run; a known producer mostly continues its sequence, or repeats a batch."""
    producer = draw(st.none() | st.sampled_from(_PRODUCERS))
    stamp = None
    count = draw(st.integers(1, 4))
    if producer is not None:
        epoch, sequence = draw(st.integers(0, 1)), draw(_sequences)
        state = states.get(producer)
        kind = draw(st.sampled_from(["any", "next", "repeated"]))
        if state is not None and kind != "any":
            epoch = state.producer_epoch
            first, last, _ = draw(st.sampled_from(list(BATCH.iter_unpack(state.batches))))
            sequence, count = first, (last - first) % 2**31 + 1
            if kind == "next":
                _, last, _ = BATCH.unpack(state.batches[-BATCH.size :])
                sequence, count = (last + 1) % 2**31, draw(st.integers(1, 4))
        stamp = (producer, epoch, sequence)
    return run_of(count, at=draw(st.integers(-1, 50)), producer=stamp)


@st.composite
def _sections(draw: st.DrawFn) -> Given:
    states = draw(st.dictionaries(st.sampled_from(_PRODUCERS), _states))
    runs = draw(st.lists(_runs(states), min_size=1, max_size=draw(st.sampled_from([1, 1, 1, 2]))))
    exists = draw(st.sampled_from([True, True, True, False]))
    return Given(runs_of(*runs), draw(_rows) if exists else None, states)


def _producers(given_: Given) -> list[int]:
    return sorted({run.producer.producer_id for run in given_.runs if run.producer is not None})


@given(
    st.lists(_sections(), max_size=6),
    st.sets(st.tuples(st.sampled_from(_PRODUCERS), st.integers(0, 1)), max_size=2),
)
def test_bulk_assignment_equals_assignment_of_each_section(
    file: list[Given], failed: set[tuple[int, int]]
) -> None:
    """It leaves out sections of several runs, refusals, duplicates and new epochs."""
    sections = [
        SectionCommit(topic_id=UUID(int=1), partition=number, position=0, length=1, runs=each.runs)
        for number, each in enumerate(file)
    ]
    entries = [(index, producer) for index, each in enumerate(file) for producer in _producers(each)]
    rows = [
        (number, *file[index].states[producer])
        for number, (index, producer) in enumerate(entries, 1)
        if producer in file[index].states
    ]
    locked = LockedPartitions(
        [(index + 1, *each.row, 0) for index, each in enumerate(file) if each.row is not None],
        len(file),
        epoch=2,
    )
    for index, each in enumerate(file):
        known = (locked.exists[index], locked.begins_epoch[index], locked.leader_epochs[index])
        assert known == ((True, each.row[2] < 2, 2) if each.row is not None else (False, False, -1))
    bulk = SingleRuns(sections, failed).assign(locked, [index for index, _ in entries], rows)
    ordinals = {index: ordinal for ordinal, index in enumerate(bulk.indexes.tolist())}
    updated = dict(zip(bulk.producers.indexes.tolist(), zip(*bulk.producers[1:], strict=True), strict=True))
    for index, each in enumerate(file):
        if each.row is None or len(each.runs) > 1:
            assert index not in ordinals
            continue
        ((run,), end, producers) = assign_section(
            each.runs, each.row[1], each.states, each.row[-1], failed_producers=failed
        )
        if index not in ordinals:
            stamp = each.runs[0].producer
            assert stamp is not None
            state = each.states.get(stamp.producer_id)
            starts_new_epoch = state is not None and state.producer_epoch != stamp.producer_epoch
            assert run.duplicate or run.refusal is not None or starts_new_epoch
            continue
        column = [int(each[ordinals[index]]) for each in bulk[1:6]]
        (extent,) = extents_of_section(sections[index], (run,))
        assert column == [
            run.base_offset,
            end - run.base_offset,
            extent.record_count,
            extent.min_timestamp,
            extent.max_timestamp,
        ]
        assert extent.offset_shift == run.base_offset
        assert {
            int(producer): ProducerState(int(epoch), batches)
            for producer, epoch, batches in ([updated[index]] if index in updated else [])
        } == producers
