"""One attempt at the commit of an ingestion file, within its transaction of two round trips.

1. Lock and read, in this order: the file, the session, the transactional ids in the order of their producer
   ids, the partitions in (topic id, partition) order, the producers. Then assign offsets:
   `catalog.commit.bulk_assignment` handles the usual sections, `catalog.commit.assignment` the others.
2. Write, and commit.

Several files may share a transaction. It takes the locks of all of them first, in the same order
(`lock_together`). Then one attempt follows the other, and each one reads what those before it have written.
Their statements share round trips: a transaction of n files takes n + 1.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from catalog.commit.assignment import (
    assign_section,
    extents_of_section,
    reject_section,
    waiting_for_readoption,
)
from catalog.commit.bulk_assignment import LockedPartitions, SingleRuns
from catalog.commit.columns import CommitRowBuilder, SectionColumns, StampedProducers
from catalog.commit.file_gaps import FileGaps
from catalog.commit.results import (
    SectionOutcome,
    decode_outcomes,
    encode_outcomes,
)
from catalog.commit.transactions import TransactionalRuns
from catalog.database.sql_files import load_queries
from catalog.errors import CommitResultExpiredError, InvalidCommitError
from catalog.lifecycle.expiry import COMMIT_RESULT_RETENTION_MS
from catalog.lifecycle.incarnation import replaced_error
from catalog.lifecycle.lost_commits import REPORT_PERIOD_MS
from catalog.lifecycle.sessions import fenced_error
from catalog.model import FileKind, RunRefusal, RunResult
from catalog.rows import format_params

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from psycopg import Cursor

    from catalog.commit.bulk_assignment import BulkAssignment
    from catalog.commit.columns import CommitRows
    from catalog.commit.sequence_gaps import OpenedGaps
    from catalog.commit.sequences import ProducerState
    from catalog.database.connection import TupleRow
    from catalog.database.pool import Transaction
    from catalog.lifecycle.incarnation import Evidence
    from catalog.model import BatchRun, FileCommit, SectionCommit

    Rows = Cursor[TupleRow]

_SQL = load_queries("commit")


class CommitAttempt:
    """One attempt at a commit, inside its transaction."""

    def __init__(
        self,
        transaction: Transaction,
        commit: FileCommit,
        now_ms: int | None,
        evidence: Evidence,
        *,
        is_recovering: bool = False,
    ) -> None:
        """Take the file, an injected time, and what this process knows of the history.

        `is_recovering` says that lost files may be readopted behind this commit.
        """
        self._transaction = transaction
        self._commit = commit
        self._injected_now_ms = now_ms
        self._evidence = evidence
        self._is_recovering = is_recovering
        self._awaiting: Rows | None = None
        self._awaits: bool | None = None
        self._now_ms = 0
        self.epoch = -1
        self.flushed = 0
        self._columns = SectionColumns(commit.sections)
        self._producers = StampedProducers(commit.sections, self._columns)
        self._gaps = FileGaps(self._columns, self._producers)
        self._transactional = TransactionalRuns(
            commit.sections if self._producers.have_transactions else (), self._columns
        )

    def require_no_transaction(self) -> None:
        """Raise InvalidCommitError if the file has batches of transactions, so that it is committed alone."""
        if self._producers.have_transactions:
            raise InvalidCommitError(
                f"file {self._commit.file_id} has a transaction, so no other file may share its commit"
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
        if self._is_recovering:
            self._awaiting = send(_SQL["awaits_readoption"], self._awaiting_params())
        single_runs = self._single_runs()  # built while the server takes the locks
        self._transaction.wait()
        if transactions is not None and added is not None:
            self._transactional.take(transactions.fetchall(), added.fetchall())
        return result, session, partitions, producers, single_runs

    def _lock_session(self, params: dict[str, object]) -> Rows:
        """Send the statement whose result `_check_session` examines."""
        return self._transaction.send(_SQL["lock_session"], params)

    def _single_runs(self) -> SingleRuns:
        """Return the sections that need no special treatment."""
        return SingleRuns(
            self._commit.sections, self._commit.failed_producers, accepts_expired=not self._is_recovering
        )

    def _awaiting_params(self) -> dict[str, object]:
        return {"now_ms": self._injected_now_ms, "period_ms": REPORT_PERIOD_MS}

    def _awaits_readoption(self) -> bool:
        """Return True if lost commits of producers may still be readopted soon."""
        if self._awaits is None:
            if self._awaiting is None:
                self._awaiting = self._transaction.send(_SQL["awaits_readoption"], self._awaiting_params())
                self._transaction.wait()
            ((self._awaits,),) = self._awaiting.fetchall()
        return bool(self._awaits)

    def _read_gaps(self) -> None:
        """Send the statement that reads gaps, if this is a readoption."""

    def _gaps_of(self, index: int, _first_new_producer_id: int) -> OpenedGaps | None:
        """Return the gaps in the sequences of a section's producers, if they are to be recorded."""
        return self._gaps.opened(index) if self._is_recovering else None

    def _refused_in(self, _section: SectionCommit) -> Collection[int]:
        """Return the first offsets of the runs that the lost commit refused, if this is a readoption."""
        return ()

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

    def _may_commit(self, state: str) -> bool:
        return state == "active"

    def _check_session(self, rows: list[TupleRow]) -> None:
        """Raise SessionFencedError unless the session may commit; take time and epoch from the same row.

        CatalogReplacedError: the server continues on another history of commits than the session's.
        """
        if not rows:
            raise fenced_error(self._commit.session_id, "unknown")
        state, self._now_ms, self.epoch, is_current, self.flushed = rows[0]
        if not self._may_commit(state):
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
        must_wait = bool(indexes) and self._may_lack_earlier_batches()
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
                0 if must_wait else first_new_producer_id,
                failed_producers=self._commit.failed_producers,
                gaps=self._gaps_of(index, first_new_producer_id),
                refused=self._refused_in(section),
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

    def _may_lack_earlier_batches(self) -> bool:
        """Return True if a producer without a state must begin with 0, although its state may have expired.

        Its last batches may be among the lost ones. After the first minute of an epoch it waits no longer:
        their readoption appends them behind.
        """
        known = self._evidence.incarnation
        if not self._is_recovering or known is None:
            return False
        return self._now_ms - known.started_ms < REPORT_PERIOD_MS and self._awaits_readoption()

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
        if not self._awaits_readoption():
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
        self._gaps.write(self._transaction, self._now_ms)
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
        }
        send(_SQL["insert_file"], params)
        send(_SQL["insert_result"], params)

    def _file_params(self) -> dict[str, object]:
        return {"file_id": self._commit.file_id, "now_ms": self._now_ms}


def lock_together(transaction: Transaction, commits: Sequence[FileCommit]) -> None:
    """Send the statements that take the locks of several files, in the order that every transaction uses.

    Without them, the second file would lock its partitions after those of the first one, in any order. No
    file may have transactions: the locks of transactional ids come before those of partitions.
    """
    for file_id in sorted(commit.file_id for commit in commits):
        transaction.send(_SQL["lock_file_id"], {"file_id": file_id})
    transaction.send(_SQL["hold_session"], {"session_id": commits[0].session_id})
    sections = {
        (section.topic_id.int, section.partition): section
        for commit in commits
        for section in commit.sections
    }
    transaction.send(_SQL["lock_partitions"], SectionColumns(list(sections.values())).keys())


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
