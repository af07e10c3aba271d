"""The commits that this agent acknowledged recently, to compare with the catalog after a failover.

Bounds: the last 30 minutes, 20,000 files, 100,000 sections and refused runs, and 20,000 topics. The
topics whose last acknowledged commits are the oldest are forgotten first.

The clock of this machine stops while it is suspended. So only times of the catalog's clock decide whether a
commit is lost (`LostCommits.compare`), and whether the catalog knows a dropped one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from catalog.commit.results import appended_range, refused_runs
from catalog.lifecycle.incarnation import MAX_COMMIT_AGE_SECONDS
from catalog.lifecycle.lost_commits import AcknowledgedCommit

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence
    from uuid import UUID

    from agent.cluster.commits import CommittedFile
    from catalog.model import FileCommit, SectionResult, Topic
    from core.clock import Clock

MAX_FILES: Final = 20_000
MAX_SECTIONS: Final = 100_000
MAX_TOPICS: Final = 20_000
# The clocks of two servers may differ by as much.
_MAX_CLOCK_ERROR_MS: Final = 300_000


class _Entry(NamedTuple):
    commit: AcknowledgedCommit
    topic_ids: Sequence[UUID]  # with acknowledged batches, also if all of these are duplicates
    sections: int  # and refused runs
    at: float


class AcknowledgedCommits:
    """Commits in their order. Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: deque[_Entry] = deque()
        self._sections = 0
        self._number = 0
        self._topics: dict[UUID, Topic] = {}
        self._dropped: dict[UUID, int] = {}  # when the last dropped commit of a session was committed
        self._incomplete: set[UUID] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def committed(self, file: CommittedFile, results: Sequence[SectionResult]) -> None:
        """Remember a committed file, which the agent acknowledges now."""
        commit = file.commit
        ranges = (
            appended_range(section, result.runs)
            for section, result in zip(commit.sections, results, strict=True)
        )
        topic_ids = _acknowledged_topics(commit, results)
        for topic_id in topic_ids:
            if (topic := file.topics.get(topic_id)) is not None:
                self._remember(topic)
        refused = tuple(refused_runs(commit, results))
        self._number += 1
        remembered = AcknowledgedCommit(
            file_id=commit.file_id,
            session_id=commit.session_id,
            object_name=commit.object_name,
            number=self._number,
            committed_ms=max((each.committed_ms for each in results), default=0),
            offsets=tuple(filter(None, ranges)),
            epoch=max((each.leader_epoch for each in results if each.leader_epoch >= 0), default=None),
            refused=refused,
        )
        now = self._clock.monotonic()
        sections = len(commit.sections) + len(refused)
        self._entries.append(_Entry(remembered, topic_ids, sections, now))
        self._sections += sections
        while self._entries and (
            len(self._entries) > MAX_FILES
            or self._sections > MAX_SECTIONS
            or now - self._entries[0].at > MAX_COMMIT_AGE_SECONDS
        ):
            self._note_dropped(self._entries.popleft())

    def _remember(self, topic: Topic) -> None:
        known = self._topics.pop(topic.topic_id, topic)  # the newest is last
        self._topics[topic.topic_id] = topic if known.partition_count <= topic.partition_count else known
        if len(self._topics) > MAX_TOPICS:
            del self._topics[next(iter(self._topics))]

    def topics_of(self, commits: Iterable[AcknowledgedCommit]) -> dict[UUID, Topic | None]:
        """Return the topics with acknowledged batches in these commits; None for a forgotten one.

        The topic of the newest acknowledged batch is last.
        """
        file_ids = {commit.file_id for commit in commits}
        wanted: set[UUID] = set()
        for entry in self._entries:
            if entry.commit.file_id in file_ids:
                wanted.update(entry.topic_ids)
        found: dict[UUID, Topic | None] = dict.fromkeys(wanted - self._topics.keys())
        found.update((topic_id, topic) for topic_id, topic in self._topics.items() if topic_id in wanted)
        return found

    def epochs_of(self, commits: Iterable[AcknowledgedCommit]) -> dict[UUID, int]:
        """Return the last epoch in which these commits had acknowledged batches of a topic, by topic id."""
        file_ids = {commit.file_id for commit in commits}
        found: dict[UUID, int] = {}
        for entry in self._entries:
            epoch = entry.commit.epoch
            if entry.commit.file_id in file_ids and epoch is not None:
                found |= {each: max(epoch, found.get(each, -1)) for each in entry.topic_ids}
        return found

    def _note_dropped(self, dropped: _Entry) -> None:
        self._sections -= dropped.sections
        commit = dropped.commit
        self._dropped[commit.session_id] = max(commit.committed_ms, self._dropped.get(commit.session_id, 0))

    def recent(self) -> list[AcknowledgedCommit]:
        """Return the remembered commits, oldest first."""
        oldest = self._clock.monotonic() - MAX_COMMIT_AGE_SECONDS
        while self._entries and self._entries[0].at < oldest:
            self._note_dropped(self._entries.popleft())
        return [entry.commit for entry in self._entries]

    def drop(self, file_ids: Container[UUID]) -> None:
        """Drop the commits of some files, as if they were beyond the bounds."""
        kept: deque[_Entry] = deque()
        for entry in self._entries:
            if entry.commit.file_id in file_ids:
                self._note_dropped(entry)
            else:
                kept.append(entry)
        self._entries = kept

    def is_complete(self, session_id: UUID, *, knows_dropped: bool, heartbeat_ms: int | None) -> bool:
        """Return True if every lost commit of a session is remembered.

        `knows_dropped` says that the catalog knows a commit after all dropped ones: then it knows these, too.
        It also knows all commits before the session's last heartbeat that it knows. `heartbeat_ms` is the
        time of that by the catalog's clock.
        """
        if session_id in self._incomplete:
            return False
        dropped_ms = self._dropped.get(session_id)
        if knows_dropped or dropped_ms is None:
            return True
        return heartbeat_ms is not None and heartbeat_ms > dropped_ms + _MAX_CLOCK_ERROR_MS

    def sessions(self) -> set[UUID]:
        """Return the sessions of the remembered commits."""
        return {entry.commit.session_id for entry in self._entries}

    def keep_incomplete(self, sessions: Iterable[UUID]) -> None:
        """Let sessions that are not complete never become so.

        When the recovery is repeated, or at the next one, the catalog may know a remembered commit only
        because it was committed again.
        """
        self._incomplete.update(sessions)

    def recovered(self) -> None:
        """Keep the commits after a recovery, because the next failover may lose what this one has kept.

        Sessions without remembered commits are forgotten.
        """
        remembered = self.sessions()
        self._incomplete &= remembered
        self._dropped = {each: ms for each, ms in self._dropped.items() if each in remembered}


def _acknowledged_topics(commit: FileCommit, results: Sequence[SectionResult]) -> Sequence[UUID]:
    """Return the topics of the sections of which a batch was not rejected; sections are sorted by topic."""
    found: list[UUID] = []
    last = None
    for section, result in zip(commit.sections, results, strict=True):
        topic_id = section.topic_id
        if topic_id is not last and any(run.refusal is None for run in result.runs):
            found.append(topic_id)
            last = topic_id
    return found
