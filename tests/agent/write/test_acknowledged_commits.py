"""The memory of acknowledged commits is bounded, and knows what it has dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from agent.write import acknowledged_commits
from agent.write.acknowledged_commits import MAX_AGE_SECONDS, AcknowledgedCommits
from catalog.model import (
    BatchRun,
    FileCommit,
    OffsetRange,
    RunRefusal,
    RunResult,
    SectionCommit,
    SectionResult,
)
from core.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from agent.cluster.commits import CommittedSection

_TOPIC = UUID(int=9)


@dataclass
class _File:
    commit: FileCommit
    sections: Sequence[CommittedSection] = ()


def _commit(memory: AcknowledgedCommits, number: int, *, session: int = 1, sections: int = 1) -> None:
    run = BatchRun(first_offset=0, offset_count=3, record_count=3, min_timestamp=1, max_timestamp=1)
    commit = FileCommit(
        file_id=UUID(int=number),
        object_name=f"object {number}",
        size=1,
        directory_length=1,
        session_id=UUID(int=session),
        sections=tuple(
            SectionCommit(topic_id=_TOPIC, partition=each, position=0, length=1, runs=(run, run))
            for each in range(sections)
        ),
    )
    rejected = RunResult(refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE, detail="")
    results = [
        SectionResult(
            topic_id=_TOPIC,
            partition=each,
            log_start_offset=0,
            high_watermark=10,
            leader_epoch=0,
            runs=(rejected, RunResult(base_offset=7)),
        )
        for each in range(sections)
    ]
    memory.committed(_File(commit), results)


def test_it_remembers_the_offsets_that_were_appended() -> None:
    memory = AcknowledgedCommits(ManualClock())
    _commit(memory, 5, sections=2)
    (remembered,) = memory.recent()
    assert remembered.offsets == tuple(OffsetRange(str(_TOPIC), each, 7, 10) for each in range(2))
    assert (remembered.file_id, remembered.session_id) == (UUID(int=5), UUID(int=1))


def test_it_is_bounded_by_age_files_and_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledged_commits, "MAX_FILES", 3)
    monkeypatch.setattr(acknowledged_commits, "MAX_SECTIONS", 4)
    clock = ManualClock()
    memory = AcknowledgedCommits(clock)
    for number in range(5):
        _commit(memory, number)
    assert [each.file_id.int for each in memory.recent()] == [2, 3, 4]
    _commit(memory, 5, sections=3)
    assert [each.file_id.int for each in memory.recent()] == [4, 5]
    clock.advance(MAX_AGE_SECONDS + 1)
    assert memory.recent() == []


def test_a_session_is_complete_unless_commits_were_dropped_that_may_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the catalog knows the oldest remembered commit, it knows the dropped ones."""
    monkeypatch.setattr(acknowledged_commits, "MAX_FILES", 1)
    memory = AcknowledgedCommits(ManualClock())
    for number in (1, 2):
        _commit(memory, number, session=number)
    first, second = UUID(int=1), UUID(int=2)
    assert memory.is_complete(second, knows_oldest=False, heartbeat_age_ms=None)
    assert not memory.is_complete(first, knows_oldest=False, heartbeat_age_ms=None)
    assert memory.is_complete(first, knows_oldest=True, heartbeat_age_ms=None)
    memory.forget()
    assert memory.is_complete(first, knows_oldest=False, heartbeat_age_ms=None)
    assert len(memory) == 0


def test_the_catalog_knows_what_was_committed_well_before_a_heartbeat_that_it_knows() -> None:
    clock = ManualClock()
    memory = AcknowledgedCommits(clock)
    _commit(memory, 1)
    clock.advance(MAX_AGE_SECONDS + 1)
    assert memory.recent() == []
    session_id = UUID(int=1)
    for age_ms, is_complete in (
        (0, True),
        (1_500_000, True),
        (1_501_000, False),
        (-1, False),
        (None, False),
    ):
        assert memory.is_complete(session_id, knows_oldest=False, heartbeat_age_ms=age_ms) is is_complete


def test_a_file_with_more_sections_than_are_remembered_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledged_commits, "MAX_SECTIONS", 1)
    memory = AcknowledgedCommits(ManualClock())
    _commit(memory, 1, sections=2)
    assert len(memory) == 0
    assert not memory.is_complete(UUID(int=1), knows_oldest=False, heartbeat_age_ms=None)
