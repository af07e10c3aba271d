"""Assignment of offsets to the runs of a section, and the resulting extents.

The functions are pure. Their input is what the transaction has read under its locks; the transaction writes
their results.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from catalog.commit.sequences import append_batch, check_sequence, insert_batch
from catalog.errors import InvalidCommitError
from catalog.model import RunRefusal, RunResult

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from catalog.commit.sequence_gaps import OpenedGaps
    from catalog.commit.sequences import ProducerState
    from catalog.model import BatchRun, FileCommit, ProducerStamp, SectionCommit


_NO_PRODUCERS: Final[Mapping[int, ProducerState]] = {}
_REFUSED_BEFORE: Final = RunResult(
    refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE, detail="the lost commit of this file had refused it, too"
)


def _refuse_nothing(_stamp: ProducerStamp) -> RunResult | None:
    return None


class AssignedExtent(NamedTuple):
    """Contiguous offsets assigned to adjacent accepted runs of a section."""

    base_offset: int
    last_offset: int
    record_count: int
    min_timestamp: int
    max_timestamp: int
    offset_shift: int


class SectionAssignment(NamedTuple):
    """Result per run, the new log end offset, and the new states of the section's producers by id."""

    runs: tuple[RunResult, ...]
    log_end_offset: int
    producers: Mapping[int, ProducerState]


def check_commit(commit: FileCommit) -> None:
    """Raise InvalidCommitError if a partition has two sections or a section's runs are not contiguous."""
    seen = set()
    for section in commit.sections:
        key = (section.topic_id.int, section.partition)
        problem = "the partition has two sections" if key in seen else _problem_of(section.runs)
        if problem:
            raise InvalidCommitError(
                f"file {commit.file_id}, topic {section.topic_id}, partition {section.partition}: {problem}"
            )
        seen.add(key)


def _problem_of(runs: Sequence[BatchRun]) -> str:
    if not runs:
        return "the section is empty"
    expected = 0
    for run in runs:
        if run.first_offset != expected or run.offset_count < 1:
            return (
                f"a run begins at {run.first_offset} with {run.offset_count} offsets, "
                f"the one before ends at {expected}"
            )
        if not 0 <= run.record_count <= run.offset_count:
            return f"a run has {run.record_count} records at {run.offset_count} offsets"
        expected += run.offset_count
    return ""


def assign_section(
    runs: Sequence[BatchRun],
    log_end_offset: int,
    producers: Mapping[int, ProducerState],
    first_new_producer_id: int,
    *,
    failed_producers: Collection[tuple[int, int]] = (),
    gaps: OpenedGaps | None = None,
    refused: Collection[int] = (),
    refuse: Callable[[ProducerStamp], RunResult | None] = _refuse_nothing,
) -> SectionAssignment:
    """Assign offsets from `log_end_offset` on to the runs, in order.

    `producers` has the partition's producer states by id. No state of a producer with an id of at least
    `first_new_producer_id` has expired. `failed_producers` are those of the `FileCommit`. `gaps` note
    what a run skips; those of a readoption say which runs are appended after a gap, or behind what their
    producers sent since. A readoption also gives the first offsets of the runs that the lost commit had
    `refused`. `refuse` checks transactional runs.
    """
    if len(runs) == 1 and runs[0].producer is None and not refused:  # the usual one of thousands
        (run,) = runs
        return SectionAssignment(
            (RunResult(base_offset=log_end_offset),), log_end_offset + run.offset_count, _NO_PRODUCERS
        )
    end = log_end_offset
    updated: dict[int, ProducerState] = {}
    results = []
    for run in runs:
        stamp = run.producer
        count = run.offset_count
        if refused and run.first_offset in refused:
            results.append(_REFUSED_BEFORE)
            continue
        if stamp is not None:
            if stamp.is_transactional and (refusal := refuse(stamp)) is not None:
                results.append(refusal)
                continue
            producer_id = stamp.producer_id
            state = updated.get(producer_id) or producers.get(producer_id)
            has_failed = bool(failed_producers) and stamp.identity in failed_producers
            verdict = check_sequence(state, stamp, count, 0 if has_failed else first_new_producer_id)
            if verdict is not None and (gaps is None or not gaps.must_append(verdict, state, stamp, count)):
                results.append(verdict)
                continue
            if gaps is None:
                updated[producer_id] = append_batch(state, stamp, count, end)
            else:
                gaps.appended(state, stamp, count)
                updated[producer_id] = insert_batch(state, stamp, count, end)
        results.append(RunResult(base_offset=end))
        end += count
    return SectionAssignment(tuple(results), end, updated)


def reject_section(runs: Sequence[BatchRun]) -> tuple[RunResult, ...]:
    """Return the results for a section whose topic or partition does not exist."""
    result = RunResult(
        refusal=RunRefusal.UNKNOWN_TOPIC_OR_PARTITION, detail="the topic was deleted, or lacks this partition"
    )
    return (result,) * len(runs)


def waiting_for_readoption(result: RunResult) -> RunResult:
    """Return the result of a run if a gap before it may still be filled."""
    if result.refusal is not RunRefusal.OUT_OF_ORDER_SEQUENCE:
        return result
    return replace(result, refusal=RunRefusal.AWAITS_READOPTION)


def extents_of_section(section: SectionCommit, results: Sequence[RunResult]) -> list[AssignedExtent]:
    """Return the extents of the accepted runs; runs that are adjacent in file and log share an extent."""
    if len(results) == 1:
        return [_extent(section.runs[0], results[0].base_offset)] if _is_appended(results[0]) else []
    extents: list[AssignedExtent] = []
    for run, result in zip(section.runs, results, strict=True):
        if not _is_appended(result):
            continue
        extent = _extent(run, result.base_offset)
        if extents and extents[-1].offset_shift == extent.offset_shift:
            extent = _joined(extents.pop(), extent)
        extents.append(extent)
    return extents


def _is_appended(result: RunResult) -> bool:
    return result.refusal is None and not result.duplicate


def _extent(run: BatchRun, base_offset: int) -> AssignedExtent:
    return AssignedExtent(
        base_offset,
        base_offset + run.offset_count - 1,
        run.record_count,
        run.min_timestamp,
        run.max_timestamp,
        base_offset - run.first_offset,
    )


def _joined(before: AssignedExtent, after: AssignedExtent) -> AssignedExtent:
    return AssignedExtent(
        before.base_offset,
        after.last_offset,
        before.record_count + after.record_count,
        min(before.min_timestamp, after.min_timestamp),
        max(before.max_timestamp, after.max_timestamp),
        after.offset_shift,
    )
