"""Outcomes of a commit by section, and their encoding in the catalog for retries.

The encoding is JSON: one array per section in the file's order, `[log start offset, high watermark, leader
epoch, runs]`. A run is its base offset, `[base offset]` for a duplicate, or `[refusal, detail]`. Extents are
not stored, because they follow from the commit, which a retry sends again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from catalog.commit.assignment import extents_of_section
from catalog.errors import InvalidCommitError
from catalog.model import Extent, FileKind, OffsetRange, RunRefusal, RunResult, SectionResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import FileCommit, SectionCommit


class SectionOutcome(NamedTuple):
    """Part of a `SectionResult` that does not follow from the commit."""

    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    runs: tuple[RunResult, ...]


def encode_outcomes(outcomes: Sequence[SectionOutcome]) -> bytes:
    """Encode the outcomes of a commit."""
    return orjson.dumps(
        [
            (log_start, high_watermark, leader_epoch, [_encode_run(run) for run in runs])
            for log_start, high_watermark, leader_epoch, runs in outcomes
        ]
    )


def _encode_run(run: RunResult) -> int | list[int | str]:
    if run.refusal is not None:
        return [run.refusal.value, run.detail]
    return [run.base_offset] if run.duplicate else run.base_offset


def decode_outcomes(data: bytes, commit: FileCommit) -> list[SectionOutcome]:
    """Decode stored outcomes; InvalidCommitError if they belong to a commit with other contents."""
    stored: list[Any] = orjson.loads(data)
    if [len(runs) for _, _, _, runs in stored] != [len(section.runs) for section in commit.sections]:
        raise InvalidCommitError(
            f"file {commit.file_id} was committed before with other contents",
            remedy="use a new identifier for each file",
        )
    return [
        SectionOutcome(log_start, high_watermark, leader_epoch, tuple(_decode_run(run) for run in runs))
        for log_start, high_watermark, leader_epoch, runs in stored
    ]


def _decode_run(run: int | list[Any]) -> RunResult:
    if isinstance(run, int):
        return RunResult(base_offset=run)
    if len(run) == 1:
        return RunResult(base_offset=run[0], duplicate=True)
    refusal, detail = run
    return RunResult(refusal=RunRefusal(refusal), detail=detail)


def appended_range(section: SectionCommit, results: Sequence[RunResult]) -> OffsetRange | None:
    """Return the offsets that a commit gave to a section; None if it appended nothing of it."""
    appended = [
        (result.base_offset, result.base_offset + run.offset_count)
        for run, result in zip(section.runs, results, strict=True)
        if result.refusal is None and not result.duplicate
    ]
    if not appended:
        return None
    return OffsetRange(str(section.topic_id), section.partition, appended[0][0], appended[-1][1])


def section_results(
    outcomes: Sequence[SectionOutcome], commit: FileCommit, committed_ms: int, *, with_extents: bool
) -> tuple[SectionResult, ...]:
    """Return the results for the caller of a commit."""
    return tuple(
        SectionResult(
            topic_id=section.topic_id,
            partition=section.partition,
            log_start_offset=outcome.log_start_offset,
            high_watermark=outcome.high_watermark,
            leader_epoch=outcome.leader_epoch,
            runs=outcome.runs,
            extents=_extents(outcome, section, commit, committed_ms) if with_extents else (),
        )
        for outcome, section in zip(outcomes, commit.sections, strict=True)
    )


def _extents(
    outcome: SectionOutcome, section: SectionCommit, commit: FileCommit, committed_ms: int
) -> tuple[Extent, ...]:
    return tuple(
        Extent(
            topic_id=section.topic_id,
            partition=section.partition,
            base_offset=extent.base_offset,
            last_offset=extent.last_offset,
            record_count=extent.record_count,
            min_timestamp=extent.min_timestamp,
            max_timestamp=extent.max_timestamp,
            file_id=commit.file_id,
            object_name=commit.object_name,
            file_kind=FileKind.INGESTION,
            position=section.position,
            length=section.length,
            index_position=0,
            index_length=0,
            offset_shift=extent.offset_shift,
            leader_epoch=outcome.leader_epoch,
            unique_keys=False,
            committed_ms=committed_ms,
            format=commit.format,
        )
        for extent in extents_of_section(section, outcome.runs)
    )
