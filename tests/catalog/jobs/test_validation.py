"""Checks of job specifications and results, without a catalog."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.errors import JobOutputError
from catalog.jobs.validation import check_result, check_spec, input_problem
from catalog.model import (
    Extent,
    FileKind,
    JobInput,
    JobPartition,
    JobResult,
    JobSpec,
    OutputExtent,
    OutputFile,
)
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOPICS = (UUID(int=1), UUID(int=2))
_Range = tuple[UUID, int, int]  # topic, first and last offset


def _input(file_id: UUID, extents: Sequence[Extent]) -> JobInput:
    return JobInput(file_id=file_id, object_name="name", size=1000, extents=tuple(extents))


def _extent(where: _Range, records: int) -> Extent:
    topic_id, first, last = where
    return Extent(
        topic_id=topic_id,
        partition=0,
        base_offset=first,
        last_offset=last,
        record_count=records,
        min_timestamp=0,
        max_timestamp=0,
        file_id=UUID(int=9),
        object_name="name",
        file_kind=FileKind.INGESTION,
        position=0,
        length=1,
        index_position=0,
        index_length=0,
        offset_shift=0,
        leader_epoch=0,
        unique_keys=False,
        committed_ms=0,
        claimed_by=None,
    )


def _output(where: _Range, records: int) -> OutputExtent:
    topic_id, first, last = where
    return OutputExtent(
        topic_id=topic_id,
        partition=0,
        base_offset=first,
        last_offset=last,
        record_count=records,
        min_timestamp=0,
        max_timestamp=0,
        position=0,
        length=1,
        index_position=0,
        index_length=0,
        unique_keys=False,
    )


def _spec(extents: Sequence[Extent], ends: Sequence[tuple[int, int]]) -> JobSpec:
    """Return a job of two files; partition 0 of each topic is deduplicated in the range of `ends`."""
    return JobSpec(
        job_id=UUID(int=7),
        created_ms=1,
        now_ms=2,
        hash_seed=bytes(16),
        table_bytes=1024,
        reason="a test",
        inputs=(_input(UUID(int=1), extents[::2]), _input(UUID(int=2), extents[1::2])),
        partitions=tuple(
            JobPartition(
                topic_id=topic_id,
                partition=0,
                topic_name="t",
                cleanup_policy="compact",
                compression_type="producer",
                deduplicate=True,
                reaches_log_start=True,
                base_offset=base,
                upper_offset=upper,
                delete_retention_ms=0,
            )
            for topic_id, (base, upper) in zip(_TOPICS, ends, strict=True)
        ),
    )


def _result(outputs: Sequence[OutputExtent]) -> JobResult:
    files = [
        OutputFile(
            file_id=UUID(int=number), object_name="name", size=9, directory_length=1, extents=tuple(each)
        )
        for number, each in enumerate((outputs[::2], outputs[1::2]))
    ]
    return JobResult(job_id=UUID(int=7), attempt_id=UUID(int=8), files=tuple(files), counts={})


@st.composite
def _cuts(draw: st.DrawFn, ends: Sequence[tuple[int, int]]) -> list[_Range]:
    """Cut each topic's range at random borders; the parts are in random order."""
    ranges = []
    for topic_id, (base, upper) in zip(_TOPICS, ends, strict=True):
        borders = sorted({base, upper, *draw(st.lists(st.integers(base, upper), max_size=4))})
        ranges += [(topic_id, first, end - 1) for first, end in pairwise(borders)]
    return draw(st.permutations(ranges))


_ENDS = st.tuples(st.integers(0, 9), st.integers(1, 9)).map(lambda each: (each[0], each[0] + each[1]))
_JOBS = st.tuples(_ENDS, _ENDS)


@given(_JOBS, st.data())
def test_inputs_in_any_order_that_cover_their_ranges_are_valid(
    ends: tuple[tuple[int, int], ...], data: st.DataObject
) -> None:
    ranges = data.draw(_cuts(ends))
    extents = [_extent(each, 1) for each in ranges]
    check_spec(_spec(extents, ends))
    wrong = [_spec(extents, ((ends[0][0] - 1, ends[0][1]), ends[1]))]
    wrong += [_spec(extents, (ends[0], (ends[1][0], ends[1][1] + 1)))]
    wrong += [_spec([*extents[:number], *extents[number + 1 :]], ends) for number in range(len(extents))]
    wrong += [_spec([*extents, extents[0]], ends)]
    wrong += [replace(_spec(extents, ends), hash_seed=bytes(size)) for size in (15, 17)]
    wrong += [replace(_spec(extents, ends), inputs=())]
    for each in wrong:
        with pytest.raises(InvalidInputError, match=str(each.job_id)):
            check_spec(each)


@given(_ENDS, st.lists(st.integers(0, 18), max_size=4), st.lists(st.booleans(), min_size=9, max_size=9))
def test_control_batches_cover_what_extents_leave(
    ends: tuple[int, int], cuts: list[int], is_control: list[bool]
) -> None:
    """The first range is an extent. Each of the others is one, or a run of control batches."""
    base, upper = ends
    borders = sorted({base, upper, *(each for each in cuts if base < each < upper)})
    first, *others = [(begin, end - 1) for begin, end in pairwise(borders)]
    controls = [each for each, chosen in zip(others, is_control, strict=False) if chosen]
    extents = [_extent((_TOPICS[0], *each), 1) for each in (first, *others) if each not in controls]
    partition = _spec([], (ends, (0, 1))).partitions[0]

    def is_valid(extents: Sequence[Extent], controls: Sequence[tuple[int, int]]) -> bool:
        return not input_problem(replace(partition, controls=tuple(controls)), extents)

    assert is_valid(extents, controls)
    for number in range(len(controls)):
        assert not is_valid(extents, [*controls[:number], *controls[number + 1 :]])
    if extents[1:]:
        assert not is_valid(extents[1:], [first, *controls])


@given(_JOBS, st.data())
def test_outputs_in_any_order_that_cover_their_ranges_are_valid(
    ends: tuple[tuple[int, int], ...], data: st.DataObject
) -> None:
    spec = _spec([_extent(each, each[2] - each[1] + 1) for each in data.draw(_cuts(ends))], ends)
    full = [_output(each, each[2] - each[1] + 1) for each in data.draw(_cuts(ends))]
    check_result(spec, _result(full))
    check_result(spec, _result([replace(each, record_count=0) for each in full]))
    wrong = [[*full[:number], *full[number + 1 :]] for number in range(len(full))]
    wrong += [[*full, full[0]], [*full, replace(full[0], partition=1)]]
    for each in wrong:
        with pytest.raises(JobOutputError):
            check_result(spec, _result(each))


@given(st.integers(0, 5), st.integers(1, 5), st.integers(1, 5))
def test_an_output_has_at_most_one_record_at_each_offset(base: int, size: int, other: int) -> None:
    """The number is wrong by itself, even if the job wrote no more records than it read."""
    end = base + size + other
    ends = ((base, end), (0, 1))
    spec = _spec([_extent((_TOPICS[0], base, end - 1), end - base), _extent((_TOPICS[1], 0, 0), 1)], ends)
    for number, is_valid in ((0, True), (size, True), (-1, False), (size + 1, False)):
        result = _result(
            [
                _output((_TOPICS[0], base, base + size - 1), number),
                _output((_TOPICS[0], base + size, end - 1), 0),
                _output((_TOPICS[1], 0, 0), 1),
            ]
        )
        if is_valid:
            check_result(spec, result)
        else:
            with pytest.raises(JobOutputError, match=f"{number} records in"):
                check_result(spec, result)


@given(st.integers(1, 5), st.integers(1, 5))
def test_a_job_writes_at_most_as_many_records_as_it_read(read: int, gaps: int) -> None:
    """Compacted inputs have fewer records than offsets."""
    last = read + gaps - 1
    spec = _spec(
        [_extent((_TOPICS[0], 0, last), read), _extent((_TOPICS[1], 0, 0), 1)], ((0, last + 1), (0, 1))
    )
    other = _output((_TOPICS[1], 0, 0), 0)
    check_result(spec, _result([_output((_TOPICS[0], 0, last), read), other]))
    with pytest.raises(JobOutputError, match=f"only {read} were read"):
        check_result(spec, _result([_output((_TOPICS[0], 0, last), read + 1), other]))
