"""Stored outcomes of commits: their effect on retries, their size, and those of earlier releases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np
import orjson
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.commit.assignment import reject_section
from catalog.commit.results import SectionOutcome, decode_outcomes, encode_outcomes
from catalog.errors import InvalidCommitError
from catalog.model import FileCommit, PartitionId, RunRefusal, RunResult, SectionCommit
from tests.catalog.scene import advance_log_start, run_of, runs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import BatchRun
    from tests.catalog.scene import Scene

_ID = UUID(int=1)
_MAX_OFFSET = 2**62
_REFUSED = RunResult(refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE, detail="expected 7")
_DUPLICATE = RunResult(base_offset=3, duplicate=True)


def _commit_of(sections: Sequence[Sequence[BatchRun]], topics: Sequence[int] = ()) -> FileCommit:
    return FileCommit(
        file_id=_ID,
        object_name="name",
        size=9,
        directory_length=1,
        session_id=_ID,
        sections=tuple(
            SectionCommit(
                topic_id=UUID(int=topics[number] if topics else 1),
                partition=number,
                position=0,
                length=1,
                runs=runs_of(*runs),
            )
            for number, runs in enumerate(sections)
        ),
    )


def _usual(runs: Sequence[BatchRun], base_offset: int, log_start: int, epoch: int) -> SectionOutcome:
    results = []
    for run in runs:
        results.append(RunResult(base_offset=base_offset))
        base_offset += run.offset_count
    return SectionOutcome(log_start, base_offset, epoch, tuple(results))


def _starts(outcomes: Sequence[SectionOutcome]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([each.log_start_offset for each in outcomes], dtype=np.int64)


@given(
    st.lists(
        st.tuples(
            st.integers(0, _MAX_OFFSET),
            st.lists(st.integers(1, 2**31), min_size=1, max_size=3),
            st.integers(1, 3),
            st.sampled_from(["usual", "usual", "refused", "duplicate", "gap", "unknown"]),
        ),
        max_size=12,
    ),
    st.integers(0, 2**31 - 1),
)
def test_outcomes_are_returned_as_they_were(drawn: list[tuple[int, list[int], int, str]], epoch: int) -> None:
    sections = [[run_of(count) for count in counts] for _, counts, _, _ in drawn]
    outcomes = []
    for runs, (base, _, _, kind) in zip(sections, drawn, strict=True):
        outcome = _usual(runs, base, base // 2, epoch)
        rest = outcome.runs[1:]
        if kind == "refused":
            outcome = outcome._replace(runs=(_REFUSED, *rest))
        elif kind == "duplicate":
            outcome = outcome._replace(runs=(_DUPLICATE, *rest))
        elif kind == "gap":
            outcome = outcome._replace(high_watermark=outcome.high_watermark + 1)
        elif kind == "unknown":
            outcome = SectionOutcome(-1, -1, -1, reject_section(runs))
        outcomes.append(outcome)
    commit = _commit_of(sections, sorted(topic for _, _, topic, _ in drawn))
    assert decode_outcomes(encode_outcomes(outcomes, commit), commit, _starts(outcomes)) == outcomes


def test_a_commit_of_other_contents_is_noticed() -> None:
    commit = _commit_of([[run_of(2)], [run_of(3)]])
    outcomes = [_usual(section.runs, 10, 0, 4) for section in commit.sections]
    data = encode_outcomes(outcomes, commit)
    for other in ([[run_of(2)], [run_of(4)]], [[run_of(2)]], [[run_of(2)], [run_of(1), run_of(2)]]):
        with pytest.raises(InvalidCommitError, match="other contents"):
            decode_outcomes(data, _commit_of(other), _starts(outcomes))


def test_outcomes_of_an_earlier_release_are_read() -> None:
    commit = _commit_of([[run_of(2), run_of(2), run_of(1)], [run_of(1)]])
    data = orjson.dumps([[1, 6, 2, [5, [3], ["out_of_order_sequence", "expected 7"]]], [0, 1, 2, [0]]])
    assert decode_outcomes(data, commit, np.array([9, 8])) == [
        SectionOutcome(9, 6, 2, (RunResult(base_offset=5), _DUPLICATE, _REFUSED)),
        SectionOutcome(8, 1, 2, (RunResult(base_offset=0),)),
    ]
    with pytest.raises(InvalidCommitError, match="other contents"):
        decode_outcomes(data, _commit_of([[run_of(2)], [run_of(1)]]), np.array([9, 9]))


def _as_json(outcomes: Sequence[SectionOutcome]) -> bytes:
    return orjson.dumps(
        [(start, end, epoch, [run.base_offset for run in runs]) for start, end, epoch, runs, _ in outcomes]
    )


def test_outcomes_take_a_tenth_of_their_size_as_json() -> None:
    """Partitions of one topic that differ by up to 100,000 records, with retention."""
    offsets = [5_000_000 + number * 7919 % 100_000 for number in range(100)]
    commit = _commit_of([[run_of(16)]] * len(offsets))
    outcomes = [
        _usual(section.runs, offset, offset - 1_000_000, 3)
        for section, offset in zip(commit.sections, offsets, strict=True)
    ]
    assert 10 * len(encode_outcomes(outcomes, commit)) <= len(_as_json(outcomes))


def test_outcomes_of_partitions_without_anything_in_common_are_small() -> None:
    offsets = [10 ** (number % 11) + number for number in range(100)]
    commit = _commit_of([[run_of(1), run_of(1)]] * len(offsets))
    outcomes = [
        _usual(section.runs, offset, 0, 3) for section, offset in zip(commit.sections, offsets, strict=True)
    ]
    assert len(encode_outcomes(outcomes, commit)) <= 5 * len(offsets)


def test_a_commit_stores_few_bytes(scene: Scene, catalog_url: str) -> None:
    topic = scene.topic(partitions=100)
    keys = [PartitionId(topic.topic_id, number) for number in range(100)]
    for size in range(1, 20):
        some = keys[:: 1 + size % 7]
        scene.catalog.commits.commit(scene.file({key: [run_of(size), run_of(1)] for key in some}))
    commit = scene.file({key: [run_of(3)] for key in keys})
    result = scene.catalog.commits.commit(commit)
    assert scene.catalog.commits.commit(commit) == result
    with psycopg.connect(catalog_url, options="-c search_path=siltstone") as connection:
        query = b"SELECT length(sections) FROM commit_results WHERE file_id = %s"
        row = connection.execute(query, (commit.file_id,)).fetchone()
    assert row is not None
    assert row[0] <= 150  # it was 1,800 as JSON


def test_a_retry_after_the_compaction_of_the_file_gets_its_offsets(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(5))
    commit = scene.file({PartitionId(topic.topic_id, 0): [run_of(3), run_of(4, producer=(1, 0, 0))]})
    result = scene.catalog.commits.commit(commit)
    job = scene.claimed(scene.extents(topic))
    scene.catalog.jobs.complete(scene.result(job, keep=8))
    assert commit.file_id not in {extent.file_id for extent in scene.extents(topic)}
    assert scene.catalog.commits.commit(commit) == result
    advance_log_start(scene.catalog.retention, topic.topic_id, 0, 7)
    (again,) = scene.catalog.commits.commit(commit)
    assert again == replace(result[0], log_start_offset=7)
    scene.catalog.topics.delete(topic.name)
    scene.remove_deleted_topics()
    (again,) = scene.catalog.commits.commit(commit)
    assert again == replace(result[0], log_start_offset=-1)
