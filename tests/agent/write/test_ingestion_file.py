"""Sealed files: their commits describe their bytes."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.write.ingestion_buffer import IngestionBuffer, OpenFile, Piece
from agent.write.ingestion_file import complete_appends, seal
from agent.write.pending_append import AppendResult, PendingAppend
from agent.write.validation import ValidatedBatch, append_rules_of, validate
from catalog.config.values import TopicConfig
from catalog.model import RunRefusal, RunResult, SectionResult, Topic
from object_format.record_batch.append_rules import validate_append
from object_format.record_batch.headers import iter_headers
from object_format.record_batch.records import decode_batches, encode_batch
from tests.object_format.segment_file.samples import read_file

if TYPE_CHECKING:
    from agent.write.ingestion_file import SealedFile, SealedSection
    from catalog.model import SectionCommit

_RULES = append_rules_of(TopicConfig())
_REFUSED, _DUPLICATE = 2, 3  # every second and third run

_TRANSACTIONAL = 6  # the producer id
_BATCHES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 400)), min_size=1, max_size=4)
APPENDS = st.lists(
    st.tuples(st.integers(1, 2), st.integers(0, 2), st.sampled_from([-1, -1, 5, _TRANSACTIONAL]), _BATCHES),
    min_size=1,
    max_size=12,
)


def _piece(number: int, producer: int, batches: list[tuple[int, int]]) -> Piece:
    encoded = [
        encode_batch(
            [1_000 + (7 * number + 5 * at) % 13 for at in range(records)],
            [b"key"] * records,
            [bytes([number]) * size] * records,
            producer=(producer, 0 if producer >= 0 else -1, 10 * number if producer >= 0 else -1),
            is_transactional=producer == _TRANSACTIONAL,
        )
        for records, size in batches
    ]
    data, summaries = validate_append("here", b"".join(encoded), _RULES, now_ms=1_000)
    columns = tuple(ValidatedBatch.of(summary) for summary in summaries)
    return Piece(data, columns, PendingAppend(len(batches)), 0)


def _check_section(commit: SectionCommit, section: SealedSection, data: bytes) -> None:
    runs = section.runs or [0] * len(section.batches)
    expected = 0
    places = zip(runs, section.offsets, section.offset_counts, iter_headers(data), strict=True)
    for number, offset, count, (_, header) in places:
        run = commit.runs[number]
        assert header.base_offset == expected == run.first_offset + offset
        stamp = (run.producer.producer_id, run.producer.base_sequence) if run.producer else (-1, -1)
        assert stamp == (header.producer_id, header.base_sequence)
        expected += count
    assert [number for number, _ in groupby(runs)] == list(range(len(commit.runs)))
    assert sum(run.record_count for run in commit.runs) == sum(run.offset_count for run in commit.runs)
    assert sum(run.offset_count for run in commit.runs) == expected
    (columns,) = decode_batches(data)
    for run in commit.runs:
        own = columns.timestamps[run.first_offset : run.first_offset + run.offset_count]
        assert (run.min_timestamp, run.max_timestamp) == (own.min(), own.max())
    stamped = [run.producer is not None for run in commit.runs]
    assert all(any(pair) for pair in pairwise(stamped)), "adjacent runs without a producer are joined"


def sealed_file(
    appends: list[tuple[int, int, int, list[tuple[int, int]]]],
) -> tuple[SealedFile, list[Piece]]:
    file, pieces = OpenFile(), []
    for number, (topic, partition, producer, batches) in enumerate(appends):
        pieces.append(_piece(number, producer, batches))
        file.add(UUID(int=topic), partition, pieces[-1])
    return seal(file, file_id=UUID(int=7), session_id=UUID(int=8), created_ms=9), pieces


@given(APPENDS)
def test_the_commit_describes_the_bytes_of_the_file(
    appends: list[tuple[int, int, int, list[tuple[int, int]]]],
) -> None:
    """Sections, runs, offsets and producers agree, and every block has its checksum."""
    sealed, _ = sealed_file(appends)
    data = b"".join(sealed.body)
    assert len(data) == sealed.size
    written = read_file(data).sections
    for commit, section, found in zip(sealed.commit.sections, sealed.sections, written, strict=True):
        _check_section(commit, section, found.data)
        assert found.entry.min_timestamp == min(run.min_timestamp for run in commit.runs)
        assert found.entry.max_timestamp == max(run.max_timestamp for run in commit.runs)


@given(APPENDS)
def test_each_batch_gets_the_result_of_its_run(
    appends: list[tuple[int, int, int, list[tuple[int, int]]]],
) -> None:
    """A batch is rejected, a duplicate, or at its position in the run. The log receives the appended ones."""
    sealed, pieces = sealed_file(appends)
    results = [
        SectionResult(
            topic_id=commit.topic_id,
            partition=commit.partition,
            log_start_offset=3,
            high_watermark=10_000,
            leader_epoch=0,
            runs=tuple(_run_result(number) for number in range(len(commit.runs))),
        )
        for commit in sealed.commit.sections
    ]
    complete_appends(sealed, results)
    for section, result in zip(sealed.sections, results, strict=True):
        runs = section.runs or [0] * len(section.batches)
        run_results = [result.runs[number] for number in runs]
        expected = [
            AppendResult(
                -1 if run.refusal else run.base_offset + offset,
                run.duplicate,
                run.refusal,
                run.detail,
                None,
                3,
                10_000,
            )
            for run, offset in zip(run_results, section.offsets, strict=True)
        ]
        assert [each for piece in section.pieces for each in piece.pending.results() or []] == expected
        kept = [each.base_offset for each in expected if each.appended and not each.duplicate]
        assert list(section.appended(result).base_offsets) == kept
    assert all(piece.pending.is_complete for piece in pieces)


def _run_result(number: int) -> RunResult:
    if number % _DUPLICATE == _DUPLICATE - 1:
        return RunResult(base_offset=100 * number, duplicate=True)
    if number % _REFUSED:
        return RunResult(refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE, detail="why")
    return RunResult(base_offset=100 * number)


@pytest.mark.parametrize("together", [True, False])
def test_a_file_has_the_topics_that_its_producers_know(*, together: bool) -> None:
    """Partitions were added while the file was open; a request that took long knows fewer of them."""
    buffer, topic_id = IngestionBuffer(1 << 20), UUID(int=1)
    topics = [
        Topic(topic_id=topic_id, name="t", partition_count=count, config=TopicConfig(), created_ms=0)
        for count in (1, 3, 2)
    ]
    for topic in topics:
        append = validate(topic, 0, bytearray(encode_batch([1], [b"k"], [b"v"])), now_ms=1)
        if together:
            assert buffer.add_all([append], len(append.data), PendingAppend(1))
        else:
            buffer.add(append, PendingAppend(1))
    sealed = seal(buffer.take(), file_id=UUID(int=7), session_id=UUID(int=8), created_ms=9)
    assert sealed.topics == {topic_id: topics[1]}
