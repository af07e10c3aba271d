"""The catalog's log in memory: offsets by partition, one commit per file, and faults on demand."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from catalog.errors import CatalogUnavailableError, InvalidCommitError, SessionFencedError
from catalog.model import PartitionId, RunResult, SectionResult

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from catalog.model import FileCommit, SectionCommit


class FakeLog:
    """Commits files in memory.

    `fail` fails that many commits without effect. `lose_responses` executes that many and then fails. Both
    count a call with several files once. `groups` has the number of files of each call. A call with one of
    the `broken` objects fails.
    """

    def __init__(self) -> None:
        self.ends: dict[PartitionId, int] = {}
        self.committed: list[FileCommit] = []
        self.results: dict[UUID, tuple[SectionResult, ...]] = {}
        self.fail = 0
        self.lose_responses = 0
        self.fenced: set[UUID] = set()
        self.groups: list[int] = []
        self.broken: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()

    def commit(self, commit: FileCommit) -> tuple[SectionResult, ...]:
        (results,) = self._commit([commit])
        return results

    def commit_together(self, commits: Sequence[FileCommit]) -> list[tuple[SectionResult, ...]]:
        return self._commit(commits)

    def _commit(self, commits: Sequence[FileCommit]) -> list[tuple[SectionResult, ...]]:
        self.groups.append(len(commits))
        self.gate.wait()
        if any(commit.session_id in self.fenced for commit in commits):
            raise SessionFencedError("fenced")
        if self.fail > 0:
            self.fail -= 1
            raise CatalogUnavailableError("the catalog is away")
        if any(commit.object_name in self.broken for commit in commits):
            raise InvalidCommitError("the file cannot be committed")
        for commit in commits:
            if commit.file_id not in self.results:
                self.committed.append(commit)
                self.results[commit.file_id] = tuple(self._append(section) for section in commit.sections)
        if self.lose_responses > 0:
            self.lose_responses -= 1
            raise CatalogUnavailableError("the response was lost")
        return [self.results[commit.file_id] for commit in commits]

    def _append(self, section: SectionCommit) -> SectionResult:
        partition = PartitionId(section.topic_id, section.partition)
        runs = []
        for run in section.runs:
            base = self.ends.get(partition, 0)
            runs.append(RunResult(base_offset=base))
            self.ends[partition] = base + run.offset_count
        return SectionResult(
            topic_id=section.topic_id,
            partition=section.partition,
            log_start_offset=0,
            high_watermark=self.ends[partition],
            leader_epoch=0,
            runs=tuple(runs),
            has_transactions=False,
        )


class FakeSession:
    """A session that switches to its next identifier when the current one is fenced."""

    def __init__(self, *session_ids: UUID) -> None:
        self._rest = list(session_ids)

    @property
    def session_id(self) -> UUID:
        return self._rest[0]

    def report_fenced(self, session_id: UUID) -> None:
        if session_id == self._rest[0]:
            self._rest.pop(0)
