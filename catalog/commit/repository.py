"""Commits of ingestion files.

A commit is one transaction of two round trips, for any number of partitions:

1. Lock and read, in this order: the file, the session, the transactional ids in the order of their producer
   ids, the partitions in (topic id, partition) order, the producers. Then assign offsets:
   `catalog.commit.bulk_assignment` handles the usual sections, `catalog.commit.assignment` the others.
2. Write, and commit.

A commit is idempotent: a retry for a committed file returns the stored results of the first commit, with the
current log start offsets.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from typing_extensions import override

from catalog.commit.assignment import (
    assign_section,
    check_commit,
    extents_of_section,
    reject_section,
    waiting_for_readoption,
)
from catalog.commit.bulk_assignment import LockedPartitions, SingleRuns
from catalog.commit.columns import CommitRowBuilder, SectionColumns, StampedProducers
from catalog.commit.notifications import announce
from catalog.commit.results import (
    SectionOutcome,
    appended_range,
    decode_outcomes,
    encode_outcomes,
    section_results,
)
from catalog.commit.sequence_gaps import SectionGaps, SequenceGap
from catalog.commit.transactions import TransactionalRuns
from catalog.database import arrays
from catalog.database.pool import Reserve
from catalog.database.sql_files import load_queries
from catalog.errors import CommitResultExpiredError, MissingTopicsError
from catalog.lifecycle.expiry import COMMIT_RESULT_RETENTION_MS
from catalog.lifecycle.incarnation import replaced_error
from catalog.lifecycle.lost_commits import REPORT_PERIOD_MS, offsets_as_json
from catalog.lifecycle.missing_topics import find_missing_topics
from catalog.lifecycle.sessions import fenced_error
from catalog.model import FileKind, PartitionId, RunRefusal, RunResult
from catalog.rows import format_params

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from psycopg import Cursor

    from catalog.commit.bulk_assignment import BulkAssignment
    from catalog.commit.columns import CommitRows
    from catalog.commit.sequences import ProducerState
    from catalog.database.connection import TupleRow
    from catalog.database.pool import Database, Transaction
    from catalog.lifecycle.incarnation import Evidence, Incarnations
    from catalog.model import BatchRun, FileCommit, SectionCommit, SectionResult

    Rows = Cursor[TupleRow]

_SQL = load_queries("commit")
_MAX_EXPIRED: Final = 4


class Commits:
    """Commits of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database, incarnations: Incarnations) -> None:
        self._database = database
        self._incarnations = incarnations

    def commit(self, commit: FileCommit, *, with_extents: bool = False) -> tuple[SectionResult, ...]:
        """Commit an uploaded file; return the results in the order of its sections.

        The results contain the new extents only if `with_extents` is set, because there may be thousands. The
        call may be repeated until it returns. SessionFencedError: the session may not commit.
        CommitResultExpiredError: the file was committed so long ago that the results are no longer stored.
        """
        check_commit(commit)

        def work(transaction: Transaction) -> tuple[tuple[SectionResult, ...], _Commit, int]:
            attempt = _Commit(
                transaction, commit, self._database.injected_now_ms, self._incarnations.evidence
            )
            outcomes, committed_ms = attempt.run()
            # The server processes the last statements while the results are built.
            results = section_results(outcomes, commit, committed_ms, with_extents=with_extents)
            return results, attempt, committed_ms

        results, attempt, committed_ms = self._database.transact(
            "commits.commit", work, reserve=Reserve.COMMITS
        )
        self._incarnations.committed(commit.file_id, attempt.epoch, attempt.flushed, committed_ms)
        return results

    def readopt(
        self, commit: FileCommit, *, acknowledged: bool = False, discard_unknown_topics: bool = False
    ) -> tuple[SectionResult, ...]:
        """Commit a file again whose commit was lost, behind the log ends; return the results by section.

        The rules of an ordinary commit apply: batches of idempotent producers that the log has already are
        dropped, and sections of deleted topics are rejected. With `acknowledged`, a batch is appended also if
        batches before it are missing, or if its producer has begun another epoch since: its producer has the
        acknowledgement and does not send it again. What is missing then is recorded, and appended by a later
        readoption that has it (`catalog.commit.sequence_gaps`).

        The session must be closed and unsettled, so that garbage collection keeps its objects; a session that
        the catalog does not know becomes so. `lost_commits` records the new offsets. The call may be
        repeated. SessionFencedError: the session may still commit, or was settled. MissingTopicsError: the
        creation of a topic or of its partitions was lost, too. With `discard_unknown_topics`, their sections
        are rejected instead.
        """
        check_commit(commit)
        kind = _AcknowledgedReadoption if acknowledged else _Readoption

        def work(transaction: Transaction) -> tuple[SectionResult, ...]:
            attempt = kind(transaction, commit, self._database.injected_now_ms, self._incarnations.evidence)
            attempt.discards_unknown_topics = discard_unknown_topics
            outcomes, committed_ms = attempt.run()
            return section_results(outcomes, commit, committed_ms, with_extents=False)

        return self._database.transact("commits.readopt", work)

    def announce(self, partitions: Iterable[PartitionId], origin: UUID) -> int:
        """Notify watchers that `origin` committed to these partitions; the commits must be durable.

        Return the number of bytes of the notifications, which depends on the watchers.
        """
        return announce(self._database, partitions, origin)


class _Commit:
    """One attempt at a commit, inside its transaction."""

    _required_state = "active"
    _is_readoption = False

    def __init__(
        self, transaction: Transaction, commit: FileCommit, now_ms: int | None, evidence: Evidence
    ) -> None:
        self._transaction = transaction
        self._commit = commit
        self._injected_now_ms = now_ms
        self._evidence = evidence
        self._now_ms = 0
        self.epoch = -1
        self.flushed = 0
        self._columns = SectionColumns(commit.sections)
        self._producers = StampedProducers(commit.sections, self._columns)
        self._transactional = TransactionalRuns(
            commit.sections if self._producers.have_transactions else (), self._columns
        )

    def run(self) -> tuple[list[SectionOutcome], int]:
        """Return the outcomes by section, and the time of the commit that produced them."""
        result, session, partitions, producers, single_runs = self._lock_and_read()
        rows = partitions.fetchall()
        earlier = self._earlier_outcomes(result.fetchall(), rows)
        if earlier is not None:
            return earlier
        self._check_session(session.fetchall())
        locked = LockedPartitions(rows, len(self._commit.sections), self.epoch)
        states = producers.fetchall() if producers else []
        bulk = single_runs.assign(locked, self._producers.sections, states)
        others = np.setdiff1d(np.arange(len(self._commit.sections)), bulk.indexes, assume_unique=True)
        builder = CommitRowBuilder(self._columns, locked)
        builder.add_bulk(bulk)
        known = self._producers.states_by_section(states) if len(others) else {}
        assigned = self._judge(self._assign(others.tolist(), locked, known, builder))
        outcomes = self._write(builder.build(), lambda: _outcomes(self._commit, locked, bulk, assigned))
        return outcomes, self._now_ms

    def _lock_and_read(self) -> tuple[Rows, Rows, Rows, Rows | None, SingleRuns]:
        params = {
            "file_id": self._commit.file_id,
            "session_id": self._commit.session_id,
            "now_ms": self._injected_now_ms,
            "flushed": self._evidence.flushed,
            "last_commit": self._evidence.last_commit,
            **self._columns.keys(),
        }
        send = self._transaction.send
        send(_SQL["lock_file_id"], params)
        result = send(_SQL["find_result"], params)
        session = self._lock_session(params)
        transactions = added = None
        if self._transactional:
            transactions = send(_SQL["lock_transactions"], self._transactional.producer_params())
        partitions = send(_SQL["lock_partitions"], params)
        if self._transactional:  # after the locks: an undelete ends transactions in the partitions alone
            added = send(_SQL["read_transaction_partitions"], self._transactional.partition_params())
        producers = send(_SQL["read_producers"], self._producers.params()) if len(self._producers) else None
        self._read_gaps()
        # built while the server takes the locks
        single_runs = SingleRuns(
            self._commit.sections, self._commit.failed_producers, with_producers=not self._is_readoption
        )
        self._transaction.wait()
        if transactions is not None and added is not None:
            self._transactional.take(transactions.fetchall(), added.fetchall())
        return result, session, partitions, producers, single_runs

    def _lock_session(self, params: dict[str, object]) -> Rows:
        """Send the statement whose result `_check_session` examines."""
        return self._transaction.send(_SQL["lock_session"], params)

    def _read_gaps(self) -> None:
        """Send the statement that reads gaps, if this is a readoption."""

    def _gaps_of(self, _index: int, _first_new_producer_id: int) -> SectionGaps | None:
        """Return the gaps in the sequences of a section's producers, if this is a readoption."""
        return None

    def _earlier_outcomes(
        self, results: list[TupleRow], partitions: list[TupleRow]
    ) -> tuple[list[SectionOutcome], int] | None:
        """Return the outcomes and the time of an earlier commit of this file, or None."""
        if not results:
            return None
        ((sections, committed_ms),) = results
        if sections is None:
            raise CommitResultExpiredError(
                f"file {self._commit.file_id} was committed at {committed_ms} ms, "
                f"and its results are stored for {COMMIT_RESULT_RETENTION_MS} ms only",
                remedy="read the log to see what it contains",
            )
        locked = LockedPartitions(partitions, len(self._commit.sections), self.epoch)
        return decode_outcomes(sections, self._commit, locked.log_start_offsets), committed_ms

    def _check_session(self, rows: list[TupleRow]) -> None:
        """Raise SessionFencedError unless the session is active; take time and epoch from the same row.

        CatalogReplacedError: the server continues on another history of commits than the session's.
        """
        if not rows:
            raise fenced_error(self._commit.session_id, "unknown")
        state, self._now_ms, self.epoch, is_current, self.flushed = rows[0]
        if state != self._required_state:
            raise fenced_error(self._commit.session_id, state)
        if not is_current:
            raise replaced_error(
                "it is not the server of the last registration, or lacks a part of its WAL or the last commit"
            )

    def _assign(
        self,
        indexes: list[int],
        locked: LockedPartitions,
        known: dict[int, dict[int, ProducerState]],
        builder: CommitRowBuilder,
    ) -> dict[int, SectionOutcome]:
        """Assign offsets to the sections at `indexes` one by one; return their outcomes."""
        no_producers: dict[int, ProducerState] = {}
        outcomes: dict[int, SectionOutcome] = {}
        for index in indexes:
            section = self._commit.sections[index]
            if not locked.exists[index]:
                outcomes[index] = SectionOutcome(-1, -1, -1, reject_section(section.runs))
                continue
            log_end_offset = int(locked.log_end_offsets[index])
            first_new_producer_id = int(locked.first_new_producer_ids[index])
            runs, end, producers = assign_section(
                section.runs,
                log_end_offset,
                known.get(index, no_producers),
                first_new_producer_id,
                failed_producers=self._commit.failed_producers,
                gaps=self._gaps_of(index, first_new_producer_id),
                refuse=partial(self._transactional.refuse, index),
            )
            if self._transactional:
                self._record_transactions(index, section, runs)
            if end > log_end_offset:
                builder.add_extents(index, extents_of_section(section, runs), end)
            if producers:
                builder.add_producers(index, producers)
            log_start_offset, leader_epoch = locked.log_start_offsets[index], locked.leader_epochs[index]
            has_transactions = bool(locked.has_transactions[index]) or any(
                map(_is_transactional, section.runs)
            )
            outcomes[index] = SectionOutcome(
                int(log_start_offset), end, int(leader_epoch), runs, has_transactions
            )
        return outcomes

    def _record_transactions(self, index: int, section: SectionCommit, results: Sequence[RunResult]) -> None:
        for run, result in zip(section.runs, results, strict=True):
            stamp, is_appended = run.producer, result.refusal is None and not result.duplicate
            if stamp is not None and stamp.is_transactional and is_appended:
                self._transactional.appended(index, stamp, result.base_offset)

    def _judge(self, assigned: dict[int, SectionOutcome]) -> dict[int, SectionOutcome]:
        """Let producers wait whose batches have a gap before them that a readoption may fill."""
        has_gap = any(
            run.refusal is RunRefusal.OUT_OF_ORDER_SEQUENCE
            for outcome in assigned.values()
            for run in outcome.runs
        )
        if not has_gap:
            return assigned
        params = {"since_ms": self._now_ms - REPORT_PERIOD_MS}
        if not self._transaction.rows(_SQL["awaits_readoption"], params)[0].awaits:
            return assigned
        return {
            index: outcome._replace(runs=tuple(map(waiting_for_readoption, outcome.runs)))
            for index, outcome in assigned.items()
        }

    def _write(
        self, rows: CommitRows, make_outcomes: Callable[[], list[SectionOutcome]]
    ) -> list[SectionOutcome]:
        """Send all rows; build the outcomes while the server processes the first statement."""
        file_params, send = self._file_params(), self._transaction.send
        if len(rows):
            epoch = {"leader_epoch": self.epoch}
            send(_SQL["advance_partitions"], {**file_params, **epoch, **rows.partition_params()})
            if rows.begin_epochs:
                send(_SQL["begin_epochs"], {**epoch, **rows.epoch_params()})
                send(_SQL["remove_old_epochs"], rows.epoch_params())
        if (begun := self._transactional.begun_params()) is not None:
            send(_SQL["begin_transactions"], {**file_params, **begun})
        if (opened := self._transactional.opened_params()) is not None:
            send(_SQL["open_partitions"], opened)
        outcomes = make_outcomes()
        encoded = encode_outcomes(outcomes, self._commit)
        if len(rows):
            send(_SQL["insert_extents"], {**file_params, **rows.extent_params()})
        if rows.has_producers:
            send(_SQL["write_producers"], {**file_params, **rows.producer_params()})
        self._write_file(rows, encoded)
        return outcomes

    def _write_file(self, rows: CommitRows, outcomes: bytes) -> None:
        commit, send = self._commit, self._transaction.send
        live_bytes = rows.live_bytes
        params = {
            **self._file_params(),
            "object_name": commit.object_name,
            "kind": FileKind.INGESTION.value,
            "size": commit.size,
            "directory_length": commit.directory_length,
            "owner_id": commit.session_id,
            "extents": len(rows),
            "initial_bytes": live_bytes,
            "live_bytes": live_bytes,
            **format_params(commit.format),
            "sections": outcomes,
            "expired_before_ms": self._now_ms - COMMIT_RESULT_RETENTION_MS,
            "max_expired": _MAX_EXPIRED,
        }
        send(_SQL["insert_file"], params)
        send(_SQL["insert_result"], params)

    def _file_params(self) -> dict[str, object]:
        return {"file_id": self._commit.file_id, "now_ms": self._now_ms}


class _Readoption(_Commit):
    """One attempt to commit a lost file again, inside its transaction."""

    discards_unknown_topics = False
    _required_state = "unsettled"
    _is_readoption = True
    _must_append = False

    def __init__(
        self, transaction: Transaction, commit: FileCommit, now_ms: int | None, evidence: Evidence
    ) -> None:
        super().__init__(transaction, commit, now_ms, evidence)
        self._gap_rows: Rows | None = None
        self._known_gaps: dict[int, list[SequenceGap]] | None = None
        self._gaps: dict[int, SectionGaps] = {}

    @override
    def _read_gaps(self) -> None:
        if len(self._producers):  # after the locks of the partitions, which other readoptions take, too
            self._gap_rows = self._transaction.send(_SQL["read_gaps"], self._producers.params())

    @override
    def _gaps_of(self, index: int, first_new_producer_id: int) -> SectionGaps:
        if self._known_gaps is None:
            self._known_gaps = {}
            entries = self._producers.sections
            for number, *gap in self._gap_rows.fetchall() if self._gap_rows is not None else ():
                self._known_gaps.setdefault(entries[number - 1], []).append(SequenceGap(*gap))
        known = self._known_gaps.get(index, ())
        gaps = SectionGaps(known, first_new_producer_id, must_append=self._must_append)
        self._gaps[index] = gaps
        return gaps

    def _write_gaps(self) -> None:
        removed = [(index, *gap) for index, gaps in self._gaps.items() for gap in gaps.removed()]
        added = [(index, *gap) for index, gaps in self._gaps.items() for gap in gaps.added()]
        for query, rows in ((_SQL["delete_gaps"], removed), (_SQL["insert_gaps"], added)):
            if rows:
                self._transaction.send(query, {**self._gap_params(rows), "now_ms": self._now_ms})

    def _gap_params(self, rows: Sequence[tuple[int, ...]]) -> dict[str, object]:
        indexes, producer_ids, epochs, first, last = arrays.columns(rows, 5)
        return {
            **self._columns.keys_at(indexes),
            "producer_ids": arrays.bigints(producer_ids),
            "producer_epochs": arrays.integers(epochs),
            "first_sequences": arrays.integers(first),
            "last_sequences": arrays.integers(last),
        }

    @override
    def _assign(
        self,
        indexes: list[int],
        locked: LockedPartitions,
        known: dict[int, dict[int, ProducerState]],
        builder: CommitRowBuilder,
    ) -> dict[int, SectionOutcome]:
        if not self.discards_unknown_topics:
            sections = (self._commit.sections[index] for index in indexes if not locked.exists[index])
            missing = find_missing_topics(
                self._transaction.rows,
                (PartitionId(each.topic_id, each.partition) for each in sections),
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
        return self._transaction.send(_SQL["lock_lost_session"], params)

    @override
    def _write(
        self, rows: CommitRows, make_outcomes: Callable[[], list[SectionOutcome]]
    ) -> list[SectionOutcome]:
        outcomes = super()._write(rows, make_outcomes)
        self._write_gaps()
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


class _AcknowledgedReadoption(_Readoption):
    """One attempt to commit a lost file again that its agent had acknowledged."""

    _must_append = True


def _is_transactional(run: BatchRun) -> bool:
    return run.producer is not None and run.producer.is_transactional


def _outcomes(
    commit: FileCommit,
    locked: LockedPartitions,
    bulk: BulkAssignment,
    assigned: dict[int, SectionOutcome],
) -> list[SectionOutcome]:
    """Return the outcomes of all sections in their order; `assigned` has those that are not in `bulk`."""
    columns = (
        bulk.indexes,
        locked.log_start_offsets[bulk.indexes],
        bulk.base_offsets + bulk.offset_counts,
        locked.leader_epochs[bulk.indexes],
        bulk.base_offsets,
        locked.has_transactions[bulk.indexes],
    )
    for index, log_start, end, leader_epoch, base, has_transactions in zip(
        *(each.tolist() for each in columns), strict=True
    ):
        assigned[index] = SectionOutcome(
            log_start, end, leader_epoch, (RunResult(base_offset=base),), has_transactions
        )
    return [assigned[index] for index in range(len(commit.sections))]
