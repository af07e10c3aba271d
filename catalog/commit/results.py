"""Outcomes of a commit by section, and their encoding in the catalog for retries.

A section is usual if the commit appended all its runs, one behind the other. Its outcome follows from its
base offset, from the leader epoch of the commit, and from the commit itself, which a retry sends again. So do
the extents. A retry gets the current log start offsets. The encoding is therefore::

    1               this format (1 byte); earlier releases wrote JSON, which begins with '['
    checksum        CRC-32 of the number of offsets of each run (4 bytes, big-endian)
    epoch           leader epoch of the commit plus 1
    length, JSON    the other sections: [index, high watermark, leader epoch, runs]
    width           bits of each base offset below (1 byte)
    least offsets   for each topic in the order of the sections: the least base offset of its usual sections
    base offsets    for each usual section: its base offset minus that least offset; the lowest bit is first

Numbers without a given length are LEB128. In JSON, a run is its base offset, `[base offset]` for a duplicate,
or `[refusal, detail]`. The JSON of earlier releases has all sections, with log start offsets in place of an
index.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import orjson

from catalog.commit.assignment import extents_of_section
from catalog.errors import InvalidCommitError
from catalog.model import Extent, FileKind, OffsetRange, RefusedRun, RunRefusal, RunResult, SectionResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from catalog.model import FileCommit, SectionCommit

_FORMAT: Final = 1
_JSON: Final = ord("[")
_GROUP_BITS: Final = 7  # of a byte in LEB128


class SectionOutcome(NamedTuple):
    """Part of a `SectionResult` that does not follow from the commit.

    `has_transactions` is not stored for a retry.
    """

    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    runs: tuple[RunResult, ...]
    has_transactions: bool = True


def encode_outcomes(outcomes: Sequence[SectionOutcome], commit: FileCommit) -> bytes:
    """Encode the outcomes of a commit."""
    epoch = max((outcome.leader_epoch for outcome in outcomes), default=-1)
    usual: list[int] = []
    others = []
    for index, (outcome, section) in enumerate(zip(outcomes, commit.sections, strict=True)):
        if _is_usual(outcome, section, epoch):
            usual.append(index)
        else:
            runs = [_encode_run(run) for run in outcome.runs]
            others.append((index, outcome.high_watermark, outcome.leader_epoch, runs))
    json = orjson.dumps(others) if others else b""
    data = bytearray([_FORMAT])
    data += _checksum(commit).to_bytes(4, "big")
    _append_number(data, epoch + 1)
    _append_number(data, len(json))
    data += json
    _append_offsets(data, usual, [outcomes[index].runs[0].base_offset for index in usual], commit)
    return bytes(data)


def decode_outcomes(
    data: bytes, commit: FileCommit, log_start_offsets: NDArray[np.int64]
) -> list[SectionOutcome]:
    """Decode stored outcomes; InvalidCommitError if they belong to a commit with other contents.

    `log_start_offsets` are the current ones by section, -1 for a partition that does not exist.
    """
    log_starts = log_start_offsets.tolist()
    if data[0] == _JSON:
        return _decode_json(data, commit, log_starts)
    if int.from_bytes(data[1:5], "big") != _checksum(commit):
        raise _other_contents(commit)
    epoch, position = _number_at(data, 5)
    length, position = _number_at(data, position)
    json: list[Any] = orjson.loads(data[position : position + length]) if length else []
    found = {
        index: SectionOutcome(log_starts[index], high_watermark, leader_epoch, tuple(map(_decode_run, runs)))
        for index, high_watermark, leader_epoch, runs in json
    }
    usual = [index for index in range(len(commit.sections)) if index not in found]
    base_offsets = _offsets_at(data, position + length, usual, commit)
    for index, base_offset in zip(usual, base_offsets, strict=True):
        *base_offsets_of_runs, end = _bounds_of_runs(commit.sections[index], base_offset)
        runs = tuple(RunResult(base_offset=offset) for offset in base_offsets_of_runs)
        found[index] = SectionOutcome(log_starts[index], end, epoch - 1, runs)
    return [found[index] for index in range(len(commit.sections))]


def _is_usual(outcome: SectionOutcome, section: SectionCommit, epoch: int) -> bool:
    if outcome.leader_epoch != epoch:
        return False
    end = outcome.runs[0].base_offset
    for run, result in zip(section.runs, outcome.runs, strict=True):
        if result.refusal is not None or result.duplicate or result.base_offset != end:
            return False
        end += run.offset_count
    return end == outcome.high_watermark


def _bounds_of_runs(section: SectionCommit, base_offset: int) -> Iterator[int]:
    """Return the base offset of each run of a usual section, and the end of the last one."""
    yield base_offset
    for run in section.runs:
        base_offset += run.offset_count
        yield base_offset


def _checksum(commit: FileCommit) -> int:
    counts = [run.offset_count for section in commit.sections for run in section.runs]
    runs = [len(section.runs) for section in commit.sections]
    return zlib.crc32(np.array([*runs, *counts], dtype=">i8").tobytes())


def _first_of_topics(usual: Sequence[int], commit: FileCommit) -> list[int]:
    """Return the positions in `usual` at which the sections of another topic begin."""
    topic_ids = [commit.sections[index].topic_id for index in usual]
    return [
        number for number, topic_id in enumerate(topic_ids) if not number or topic_id != topic_ids[number - 1]
    ]


def _append_offsets(data: bytearray, usual: list[int], base_offsets: list[int], commit: FileCommit) -> None:
    if not usual:
        return
    first = _first_of_topics(usual, commit)
    offsets = np.array(base_offsets, dtype=np.int64)
    least = np.minimum.reduceat(offsets, first)
    rest = offsets - np.repeat(least, np.diff([*first, len(usual)]))
    width = int(rest.max()).bit_length()
    data.append(width)
    for each in least.tolist():
        _append_number(data, each)
    bits = (rest[:, np.newaxis] >> np.arange(width)) & 1
    data += np.packbits(bits.astype(np.uint8)).tobytes()


def _offsets_at(data: bytes, position: int, usual: list[int], commit: FileCommit) -> list[int]:
    if not usual:
        return []
    first = _first_of_topics(usual, commit)
    width, position = data[position], position + 1
    least = []
    for _ in first:
        each, position = _number_at(data, position)
        least.append(each)
    packed = np.frombuffer(data, dtype=np.uint8, offset=position)
    bits = np.unpackbits(packed, count=len(usual) * width).reshape(len(usual), width).astype(np.int64)
    rest = (bits << np.arange(width)).sum(axis=1)
    offsets = rest + np.repeat(np.array(least, dtype=np.int64), np.diff([*first, len(usual)]))
    return [int(each) for each in offsets]


def _append_number(data: bytearray, number: int) -> None:
    while number >> _GROUP_BITS:
        data.append(number & 0x7F | 0x80)
        number >>= _GROUP_BITS
    data.append(number)


def _number_at(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at `position`, and the position behind it."""
    number = shift = 0
    while data[position] & 0x80:
        number |= (data[position] & 0x7F) << shift
        shift += _GROUP_BITS
        position += 1
    return number | data[position] << shift, position + 1


def _decode_json(data: bytes, commit: FileCommit, log_starts: Sequence[int]) -> list[SectionOutcome]:
    """Decode the outcomes that an earlier release has stored."""
    stored: list[Any] = orjson.loads(data)
    if [len(runs) for _, _, _, runs in stored] != [len(section.runs) for section in commit.sections]:
        raise _other_contents(commit)
    return [
        SectionOutcome(log_start, high_watermark, leader_epoch, tuple(map(_decode_run, runs)))
        for log_start, (_, high_watermark, leader_epoch, runs) in zip(log_starts, stored, strict=True)
    ]


def _other_contents(commit: FileCommit) -> InvalidCommitError:
    return InvalidCommitError(
        f"file {commit.file_id} was committed before with other contents",
        remedy="use a new identifier for each file",
    )


def _encode_run(run: RunResult) -> int | list[int | str]:
    if run.refusal is not None:
        return [run.refusal.value, run.detail]
    return [run.base_offset] if run.duplicate else run.base_offset


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


def refused_runs(commit: FileCommit, results: Sequence[SectionResult]) -> Iterator[RefusedRun]:
    """Yield the runs that a commit refused."""
    for section, result in zip(commit.sections, results, strict=True):
        for run, done in zip(section.runs, result.runs, strict=True):
            if done.refusal is not None:
                yield RefusedRun(str(section.topic_id), section.partition, run.first_offset)


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
            has_transactions=outcome.has_transactions,
            committed_ms=committed_ms,
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
