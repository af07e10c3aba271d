"""What a commit answers, section by section: kept for a retry, and read back.

Kept as JSON, sections in the file's order, each `[log start, high watermark, leader epoch, runs]`. A run is
its base offset; or `[base offset]` for a duplicate; or `[refusal, detail]`. Extents are not kept: they follow
from the commit that the retry brings again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from catalog.commit.assignment import extents_of_section
from catalog.errors import InvalidCommitError
from catalog.model import Extent, FileKind, RunRefusal, RunResult, SectionResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import FileCommit, SectionCommit


class SectionAnswer(NamedTuple):
    """A `SectionResult` without what the commit itself tells."""

    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    runs: tuple[RunResult, ...]


def write_answers(answers: Sequence[SectionAnswer]) -> bytes:
    """The answers, to be kept."""
    return orjson.dumps(
        [
            (log_start, high_watermark, leader_epoch, [_write_run(run) for run in runs])
            for log_start, high_watermark, leader_epoch, runs in answers
        ]
    )


def _write_run(run: RunResult) -> int | list[int | str]:
    if run.refusal is not None:
        return [run.refusal.value, run.detail]
    return [run.base_offset] if run.duplicate else run.base_offset


def read_answers(data: bytes, commit: FileCommit) -> list[SectionAnswer]:
    """The answers that were kept; InvalidCommitError when `commit` is not the commit that they answered."""
    kept: list[Any] = orjson.loads(data)
    if [len(answer[3]) for answer in kept] != [len(section.runs) for section in commit.sections]:
        raise InvalidCommitError(
            f"file {commit.file_id} was committed before with other contents",
            remedy="give every file an identifier of its own",
        )
    return [
        SectionAnswer(log_start, high_watermark, leader_epoch, tuple(_read_run(run) for run in runs))
        for log_start, high_watermark, leader_epoch, runs in kept
    ]


def _read_run(run: int | list[Any]) -> RunResult:
    if isinstance(run, int):
        return RunResult(base_offset=run)
    if len(run) == 1:
        return RunResult(base_offset=run[0], duplicate=True)
    return RunResult(refusal=RunRefusal(run[0]), detail=run[1])


def section_results(
    answers: Sequence[SectionAnswer], commit: FileCommit, committed_ms: int, *, with_extents: bool
) -> tuple[SectionResult, ...]:
    """The answers as the caller gets them."""
    return tuple(
        SectionResult(
            topic_id=section.topic_id,
            partition=section.partition,
            log_start_offset=answer.log_start_offset,
            high_watermark=answer.high_watermark,
            leader_epoch=answer.leader_epoch,
            runs=answer.runs,
            extents=_extents(answer, section, commit, committed_ms) if with_extents else (),
        )
        for answer, section in zip(answers, commit.sections, strict=True)
    )


def _extents(
    answer: SectionAnswer, section: SectionCommit, commit: FileCommit, committed_ms: int
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
            leader_epoch=answer.leader_epoch,
            unique_keys=False,
            committed_ms=committed_ms,
        )
        for extent in extents_of_section(section, answer.runs)
    )
