"""The memory of acknowledged commits is bounded, and knows what it has dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.write import acknowledged_commits
from agent.write.acknowledged_commits import AcknowledgedCommits
from catalog.config.values import TopicConfig
from catalog.lifecycle.incarnation import MAX_COMMIT_AGE_SECONDS
from catalog.model import (
    BatchRun,
    FileCommit,
    OffsetRange,
    ProducerStamp,
    RefusedRun,
    RunRefusal,
    RunResult,
    SectionCommit,
    SectionResult,
    Topic,
)
from core.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.cluster.commits import CommittedSection

_TOPIC = UUID(int=9)
_STAMP = ProducerStamp(producer_id=5, producer_epoch=0, base_sequence=9)


@dataclass
class _File:
    commit: FileCommit
    sections: Sequence[CommittedSection] = ()
    topics: Mapping[UUID, Topic] = field(default_factory=dict)


def _commit(
    memory: AcknowledgedCommits,
    number: int,
    *,
    session: int = 1,
    sections: int = 1,
    topic_id: UUID = _TOPIC,
    partitions: int | None = None,
    last: RunResult | None = None,
    producer: ProducerStamp | None = None,
) -> None:
    """Acknowledge a commit; the agent knows the topic if `partitions` is set.

    The first run of each section is a duplicate. That of a producer is rejected.
    """
    run = BatchRun(
        first_offset=0, offset_count=3, record_count=3, min_timestamp=1, max_timestamp=1, producer=producer
    )
    commit = FileCommit(
        file_id=UUID(int=number),
        object_name=f"object {number}",
        size=1,
        directory_length=1,
        session_id=UUID(int=session),
        sections=tuple(
            SectionCommit(topic_id=topic_id, partition=each, position=0, length=1, runs=(run, run))
            for each in range(sections)
        ),
    )
    rejected = RunResult(refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE, detail="")
    duplicate = RunResult(base_offset=2, duplicate=True)
    results = [
        SectionResult(
            topic_id=topic_id,
            partition=each,
            log_start_offset=0,
            high_watermark=10,
            leader_epoch=0,
            runs=(duplicate if producer is None else rejected, last or RunResult(base_offset=7)),
            committed_ms=memory._clock.now_ms(),
        )
        for each in range(sections)
    ]
    topics = {} if partitions is None else {topic_id: _topic(topic_id, partitions)}
    memory.committed(_File(commit, topics=topics), results)


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
    clock.advance(MAX_COMMIT_AGE_SECONDS + 1)
    assert memory.recent() == []


def test_refused_runs_are_remembered_within_the_bound_of_sections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acknowledged_commits, "MAX_SECTIONS", 4)
    memory = AcknowledgedCommits(ManualClock())
    for number, producer in enumerate((None, _STAMP, None)):
        _commit(memory, number, producer=producer)
    assert [each.refused for each in memory.recent()] == [(), (RefusedRun(str(_TOPIC), 0, 0),), ()]
    _commit(memory, 3, producer=_STAMP)
    assert [each.file_id.int for each in memory.recent()] == [2, 3]


def test_it_remembers_the_topics_of_commits_with_the_most_partitions() -> None:
    memory = AcknowledgedCommits(ManualClock())
    for number, partitions in enumerate((1, 3, 2, None)):
        _commit(memory, number, partitions=partitions)
    assert memory.topics_of(memory.recent()[:1]) == {_TOPIC: _topic(_TOPIC, 3)}
    memory.recovered()
    assert memory.topics_of(memory.recent()[:1]) == {_TOPIC: _topic(_TOPIC, 3)}


def test_it_forgets_the_topics_first_to_which_nothing_was_written_for_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says so: the topic of a lost commit that it has forgotten must be created by hand."""
    monkeypatch.setattr(acknowledged_commits, "MAX_TOPICS", 2)
    memory = AcknowledgedCommits(ManualClock())
    for number, topic in enumerate((1, 2, 1, 3)):
        _commit(memory, number, topic_id=UUID(int=topic), partitions=1)
    topics = memory.topics_of(memory.recent())
    assert [(key.int, topic is None) for key, topic in topics.items()] == [(2, True), (1, False), (3, False)]
    assert list(memory.topics_of(memory.recent()[1:2]).values()) == [None]


def test_it_remembers_the_topics_of_duplicates_and_not_of_rejected_batches() -> None:
    """Its producer has the acknowledgement of a duplicate from this agent, too."""
    memory = AcknowledgedCommits(ManualClock())
    _commit(memory, 1, partitions=1, last=RunResult(base_offset=7, duplicate=True))
    assert memory.recent()[0].offsets == ()
    assert list(memory.topics_of(memory.recent())) == [_TOPIC]
    rejected = RunResult(refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE, detail="")
    _commit(memory, 2, partitions=1, last=rejected, producer=_STAMP)
    assert memory.topics_of(memory.recent()[1:]) == {}


def _topic(topic_id: UUID, partitions: int) -> Topic:
    return Topic(
        topic_id=topic_id, name="t", partition_count=partitions, config=TopicConfig.of({}), created_ms=0
    )


def test_a_session_is_complete_unless_commits_were_dropped_that_may_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the catalog knows a commit after the dropped ones, it knows these."""
    monkeypatch.setattr(acknowledged_commits, "MAX_FILES", 1)
    memory = AcknowledgedCommits(ManualClock())
    for number in (1, 2):
        _commit(memory, number, session=number)
    first, second = UUID(int=1), UUID(int=2)
    assert memory.is_complete(second, knows_dropped=False, heartbeat_ms=None)
    assert not memory.is_complete(first, knows_dropped=False, heartbeat_ms=None)
    assert memory.is_complete(first, knows_dropped=True, heartbeat_ms=None)
    memory.keep_incomplete([second])
    memory.recovered()
    assert [each.file_id.int for each in memory.recent()] == [2]
    assert memory.sessions() == {second}
    assert not memory.is_complete(second, knows_dropped=True, heartbeat_ms=memory._clock.now_ms())
    _commit(memory, 3, session=3)
    memory.recovered()
    assert memory.sessions() == {UUID(int=3)}
    assert memory.is_complete(UUID(int=3), knows_dropped=False, heartbeat_ms=None)


def test_the_catalog_knows_what_was_committed_well_before_a_heartbeat_that_it_knows() -> None:
    clock = ManualClock()
    memory = AcknowledgedCommits(clock)
    committed_ms = clock.now_ms()
    _commit(memory, 1)
    clock.advance(MAX_COMMIT_AGE_SECONDS + 1)
    assert memory.recent() == []
    for heartbeat_ms, is_complete in (
        (committed_ms + 300_001, True),
        (committed_ms + 300_000, False),
        (0, False),
        (None, False),
    ):
        complete = memory.is_complete(UUID(int=1), knows_dropped=False, heartbeat_ms=heartbeat_ms)
        assert complete is is_complete


def test_a_commit_that_is_too_old_for_a_comparison_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledged_commits, "MAX_SECTIONS", 3)
    memory = AcknowledgedCommits(ManualClock())
    for number in (1, 2, 3):
        _commit(memory, number, session=number)
    memory.drop({UUID(int=2)})
    assert [each.file_id.int for each in memory.recent()] == [1, 3]
    complete = [
        memory.is_complete(UUID(int=each), knows_dropped=False, heartbeat_ms=None) for each in (1, 2, 3)
    ]
    assert complete == [True, False, True]
    _commit(memory, 4)
    assert [each.file_id.int for each in memory.recent()] == [1, 3, 4], "its section is not counted"


def test_a_file_with_more_sections_than_are_remembered_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledged_commits, "MAX_SECTIONS", 1)
    memory = AcknowledgedCommits(ManualClock())
    _commit(memory, 1, sections=2)
    assert len(memory) == 0
    assert not memory.is_complete(UUID(int=1), knows_dropped=False, heartbeat_ms=None)


class _Remembered(NamedTuple):
    number: int
    session: int
    sections: int
    at: float


def _longest_suffix(commits: Sequence[_Remembered], now: float) -> Sequence[_Remembered]:
    """Return the newest commits that are within all bounds: 3 files, 4 sections, and the age."""
    for start in range(len(commits)):
        kept = commits[start:]
        few = len(kept) <= 3 and sum(each.sections for each in kept) <= 4
        if few and now - kept[0].at <= MAX_COMMIT_AGE_SECONDS:
            return kept
    return []


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 299, 300, MAX_COMMIT_AGE_SECONDS - 1, MAX_COMMIT_AGE_SECONDS]),
            st.integers(1, 2),
            st.integers(1, 5),
            st.sampled_from([False, False, False, True]),
        ),
        max_size=8,
    ),
    st.sampled_from([0, 1, 300, MAX_COMMIT_AGE_SECONDS]),
    st.booleans(),
)
def test_it_knows_which_commits_it_has_dropped(
    steps: list[tuple[float, int, int, bool]], pause: float, looks: bool
) -> None:
    """A session is complete if each of its dropped commits is so old that the catalog must know it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acknowledged_commits, "MAX_FILES", 3)
        patch.setattr(acknowledged_commits, "MAX_SECTIONS", 4)
        clock = ManualClock()
        memory = AcknowledgedCommits(clock)
        commits: list[_Remembered] = []
        for number, (seconds, session, sections, recovers) in enumerate(steps):
            clock.advance(seconds)
            if recovers:
                kept = memory.recent()
                memory.recovered()
                assert memory.recent() == kept
                remembered = {each.session for each in _longest_suffix(commits, clock.monotonic())}
                commits = [each for each in commits if each.session in remembered]
                assert {each.int for each in memory.sessions()} == remembered
            _commit(memory, number, session=session, sections=sections)
            commits.append(_Remembered(number, session, sections, clock.monotonic()))
            now = clock.monotonic()
            assert len(memory) == len(_longest_suffix(commits, now))
            if looks:
                assert len(memory.recent()) == len(memory)
        clock.advance(pause)
        now = clock.monotonic()
        suffix = _longest_suffix(commits, now)
        assert [(each.file_id.int, each.number) for each in memory.recent()] == [
            (each.number, each.number + 1) for each in suffix
        ]
        for session in (1, 2, 3):
            dropped = [each.at for each in commits if each.session == session and each not in suffix]
            for age in (None, 0, 1_000, 300_000, 1_500_000, 1_501_000):
                is_known = not dropped or (age is not None and now - dropped[-1] > age / 1000 + 300)
                heartbeat_ms = None if age is None else clock.now_ms() - age
                complete = memory.is_complete(
                    UUID(int=session), knows_dropped=False, heartbeat_ms=heartbeat_ms
                )
                assert complete is is_known
                assert memory.is_complete(UUID(int=session), knows_dropped=True, heartbeat_ms=heartbeat_ms)
