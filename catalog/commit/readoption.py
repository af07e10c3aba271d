"""One attempt to commit a lost file again, within its transaction.

Its session must have ended. Batches of a producer may be missing between those that the file has: the gap is
recorded, and filled by the file that has them (`catalog.commit.sequence_gaps`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from catalog.commit.attempt import CommitAttempt
from catalog.commit.bulk_assignment import SingleRuns
from catalog.commit.results import SectionOutcome, appended_range
from catalog.database.sql_files import load_queries
from catalog.errors import CommitResultExpiredError, MissingTopicsError
from catalog.lifecycle.incarnation import epoch_ended_error
from catalog.lifecycle.lost_commits import offsets_as_json
from catalog.lifecycle.missing_topics import find_missing_topics
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from psycopg import Cursor

    from catalog.commit.bulk_assignment import LockedPartitions
    from catalog.commit.columns import CommitRowBuilder, CommitRows
    from catalog.commit.sequence_gaps import SectionGaps
    from catalog.commit.sequences import ProducerState
    from catalog.database.connection import TupleRow
    from catalog.database.pool import Transaction
    from catalog.lifecycle.incarnation import Evidence
    from catalog.model import FileCommit, RefusedRun, SectionCommit

    Rows = Cursor[TupleRow]

_SQL = load_queries("readoption")


class Readoption(CommitAttempt):
    """One attempt to commit a lost file again, inside its transaction."""

    _must_append = False

    def __init__(
        self,
        transaction: Transaction,
        commit: FileCommit,
        now_ms: int | None,
        evidence: Evidence,
        *,
        refused: Iterable[RefusedRun] = (),
        required_epoch: int | None = None,
        committed_epoch: int | None = None,
        discards_unknown_topics: bool = False,
    ) -> None:
        super().__init__(transaction, commit, now_ms, evidence)
        self._required_epoch = required_epoch
        self._committed_epoch = committed_epoch
        self._discards_unknown_topics = discards_unknown_topics
        self._refused: dict[tuple[str, int], set[int]] = {}
        for topic_id, partition, first_offset in refused:
            self._refused.setdefault((topic_id, partition), set()).add(first_offset)
        self._unsettled: Rows | None = None
        self._is_readopted = False

    @override
    def _single_runs(self) -> SingleRuns:
        excluded = {index for index, section in enumerate(self._commit.sections) if self._refused_in(section)}
        return SingleRuns(self._commit.sections, with_producers=False, excluded=excluded)

    @override
    def _read_gaps(self) -> None:
        self._gaps.read(self._transaction)

    @override
    def _gaps_of(self, index: int, first_new_producer_id: int) -> SectionGaps:
        return self._gaps.of_readoption(index, first_new_producer_id, must_append=self._must_append)

    @override
    def _refused_in(self, section: SectionCommit) -> Collection[int]:
        return self._refused.get((str(section.topic_id), section.partition), ())

    @override
    def _assign(
        self,
        indexes: list[int],
        locked: LockedPartitions,
        known: dict[int, dict[int, ProducerState]],
        builder: CommitRowBuilder,
    ) -> dict[int, SectionOutcome]:
        if not self._discards_unknown_topics:
            sections = (self._commit.sections[index] for index in indexes if not locked.exists[index])
            missing = find_missing_topics(
                self._transaction.rows,
                (PartitionId(each.topic_id, each.partition) for each in sections),
                committed_epoch=self._committed_epoch,
                are_absent=True,
            )
            if missing:
                raise MissingTopicsError(
                    "; ".join(map(str, missing)),
                    remedy="; ".join(each.command for each in missing),
                )
        return super()._assign(indexes, locked, known, builder)

    @override
    def _judge(self, assigned: dict[int, SectionOutcome]) -> dict[int, SectionOutcome]:
        return assigned

    @override
    def _lock_session(self, params: dict[str, object]) -> Rows:
        self._transaction.send(_SQL["adopt_session"], params)
        self._unsettled = self._transaction.send(_SQL["lock_unsettled"], params)
        return super()._lock_session(params)

    @override
    def _check_session(self, rows: list[TupleRow]) -> None:
        super()._check_session(rows)
        if self._is_readopted:
            raise CommitResultExpiredError(
                f"file {self._commit.file_id} was committed again before",
                remedy="read the log to see what it contains",
            )
        if self._required_epoch is not None and self._required_epoch != self.epoch:
            raise epoch_ended_error(self._required_epoch, self.epoch)

    @override
    def _may_commit(self, state: str) -> bool:
        unsettled = [] if self._unsettled is None else self._unsettled.fetchall()
        self._is_readopted = any(is_readopted for (is_readopted,) in unsettled)
        return state != "active" and bool(unsettled)

    @override
    def _write(
        self, rows: CommitRows, make_outcomes: Callable[[], list[SectionOutcome]]
    ) -> list[SectionOutcome]:
        outcomes = super()._write(rows, make_outcomes)
        ranges = (
            appended_range(section, outcome.runs)
            for section, outcome in zip(self._commit.sections, outcomes, strict=True)
        )
        params = {
            **self._file_params(),
            "leader_epoch": self.epoch,
            "session_id": self._commit.session_id,
            "object_name": self._commit.object_name,
            "new_offsets": offsets_as_json(filter(None, ranges)),
        }
        self._transaction.send(_SQL["record_readoption"], params)
        return outcomes


class AcknowledgedReadoption(Readoption):
    """One attempt to commit a lost file again that its agent had acknowledged."""

    _must_append = True
