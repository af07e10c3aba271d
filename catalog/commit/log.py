"""The log: commits of ingestion files, and the extents that a reader needs.

A commit is one transaction of two round trips, whatever the number of partitions. The first takes every lock
and reads what the decision needs, in this order: the file, the session, the partitions in (topic id,
partition) order, the producers. Then it is decided: what is usual by `catalog.commit.bulk_assignment`, the
rest by `catalog.commit.assignment`. The second writes, and commits. A retry of a file that was committed
before gets the answer of that time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from catalog.commit.assignment import assign_section, check_commit, extents_of_section, refuse_section
from catalog.commit.bulk_assignment import LockedPartitions, SingleRuns
from catalog.commit.columns import CommitRows, NamedProducers, SectionColumns
from catalog.commit.notifications import CHANNEL, encode_partitions
from catalog.commit.results import SectionAnswer, read_answers, section_results, write_answers
from catalog.database.rows import extent_of
from catalog.database.sql_files import load_queries
from catalog.errors import CommitForgottenError
from catalog.lifecycle.sessions import fenced
from catalog.model import FileKind, RunResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from psycopg import Cursor

    from catalog.commit.bulk_assignment import BulkAssignment
    from catalog.commit.columns import WrittenRows
    from catalog.commit.sequences import ProducerState
    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.model import Extent, FileCommit, PartitionId, SectionResult

    Rows = Cursor[Row]

_COMMIT = load_queries("commit")
_SQL = load_queries("log")
ANSWERS_KEPT_MS: Final = 60 * 60 * 1000
_TIMESTAMP_PAGE: Final = 1000


class Log:
    """Commits and extents; part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def commit(self, commit: FileCommit, *, with_extents: bool = False) -> tuple[SectionResult, ...]:
        """Make an uploaded file part of the log; the answers stand in the order of its sections.

        They carry the extents that it made only when asked to: there may be thousands, and few callers care.

        May be repeated until it answers: a file is committed once. SessionFencedError when the session may
        not commit, CommitForgottenError when the first answer was given too long ago to be known still.
        """
        check_commit(commit)

        def work(transaction: Transaction) -> tuple[SectionResult, ...]:
            answers, committed_ms = _Commit(transaction, commit, self._database.injected_now_ms).run()
            # Made while the server is still busy with what was sent.
            return section_results(answers, commit, committed_ms, with_extents=with_extents)

        return self._database.transact("log.commit", work, apart=True)

    def announce(self, partitions: Iterable[PartitionId], origin: UUID) -> None:
        """Tell watchers that commits of `origin` went to these partitions; they are durable already."""
        payloads = encode_partitions(partitions, origin)
        if payloads:
            params = {"channel": CHANNEL, "payloads": payloads}
            self._database.read("log.announce", _SQL["announce"], params)

    def extents(
        self, topic_id: UUID, partition: int, offset: int, *, max_extents: int = 100, max_bytes: int = 2**30
    ) -> list[Extent]:
        """The extent that covers `offset`, and those after it in order.

        At most `max_extents`, and at most `max_bytes` of data unless the first alone has more. Empty at the
        log's end, and when there is no such partition. Costs as much as it answers.
        """
        params = {
            "topic_id": topic_id,
            "partition": partition,
            "offset": offset,
            "max_extents": max_extents,
            "max_bytes": max_bytes,
        }
        return [extent_of(row) for row in self._database.read("log.extents", _SQL["extents_from"], params)]

    def first_extent_at_or_after_timestamp(
        self, topic_id: UUID, partition: int, timestamp: int
    ) -> Extent | None:
        """The first extent in offset order with a record whose timestamp is at or after `timestamp`.

        A bisection finds the first extent that may have one. It has one unless compaction has removed the
        record since; then the extents after it are looked through, a page at a time.
        """
        params: dict[str, object] = {
            "topic_id": topic_id,
            "partition": partition,
            "timestamp": timestamp,
            "page": _TIMESTAMP_PAGE,
        }
        bounds = self._database.read("log.bisect_timestamp", _SQL["bisect_timestamp"], params)
        offset: int | None = min(bounds[0]) if bounds else None
        while offset is not None:
            params["offset"] = offset
            rows = self._database.read("log.page_of_timestamp", _SQL["page_of_timestamp"], params)
            found, offset = rows[0]
            if found is not None:
                extents = self.extents(topic_id, partition, found, max_extents=1)
                return extents[0] if extents else None
        return None

    def latest_timestamp(self, topic_id: UUID, partition: int, *, live: bool = False) -> int:
        """The largest timestamp of a partition, -1 without any; of records that are still there if `live`.

        Without `live` it costs nothing, but the record may have been compacted away or have expired.
        """
        params = {"topic_id": topic_id, "partition": partition}
        query = _SQL["latest_live_timestamp"] if live else _SQL["latest_timestamp"]
        rows = self._database.read("log.latest_timestamp", query, params)
        return int(rows[0][0]) if rows else -1


class _Commit:
    """One try at a commit, inside its transaction."""

    def __init__(self, transaction: Transaction, commit: FileCommit, now_ms: int | None) -> None:
        self._transaction = transaction
        self._commit = commit
        self._injected_now_ms = now_ms
        self._now_ms = 0
        self._columns = SectionColumns(commit.sections)
        self._named = NamedProducers(commit.sections, self._columns)

    def run(self) -> tuple[list[SectionAnswer], int]:
        """The answers, and the time of the commit that gave them."""
        result, session, partitions, producers, singles = self._lock_and_read()
        earlier = self._earlier(result.fetchall())
        if earlier is not None:
            return earlier
        self._check_session(session.fetchall())
        locked = LockedPartitions(partitions.fetchall(), len(self._commit.sections))
        states = producers.fetchall() if producers else []
        bulk = singles.assign(locked, self._named.sections, states)
        others = np.setdiff1d(np.arange(len(self._commit.sections)), bulk.indexes, assume_unique=True)
        rows = CommitRows(self._columns, locked)
        rows.add_bulk(bulk)
        decided = self._decide(
            others.tolist(), locked, self._named.known(states) if len(others) else {}, rows
        )
        answers = self._write(rows.columns(), lambda: _answers(self._commit, locked, bulk, decided))
        return answers, self._now_ms

    def _lock_and_read(self) -> tuple[Rows, Rows, Rows, Rows | None, SingleRuns]:
        params = {
            "file_id": self._commit.file_id,
            "session_id": self._commit.session_id,
            "now_ms": self._injected_now_ms,
            **self._columns.keys(),
        }
        send = self._transaction.send
        send(_COMMIT["lock_file"], params)
        result = send(_COMMIT["find_result"], params)
        session = send(_COMMIT["lock_session"], params)
        partitions = send(_COMMIT["lock_partitions"], params)
        producers = send(_COMMIT["read_producers"], self._named.params()) if len(self._named) else None
        singles = SingleRuns(self._commit.sections)  # while the server is busy
        self._transaction.wait()
        return result, session, partitions, producers, singles

    def _earlier(self, rows: list[Row]) -> tuple[list[SectionAnswer], int] | None:
        if not rows:
            return None
        data, committed_ms = rows[0]
        if data is None:
            raise CommitForgottenError(
                f"file {self._commit.file_id} was committed at {committed_ms} ms, "
                f"longer ago than answers are kept ({ANSWERS_KEPT_MS} ms)",
                remedy="read the log to see what it holds",
            )
        return read_answers(data, self._commit), committed_ms

    def _check_session(self, rows: list[Row]) -> None:
        """Whoever may commit learns the catalog's time from the same row."""
        state, self._now_ms = rows[0] if rows else ("unknown", 0)
        if state != "active":
            raise fenced(self._commit.session_id, state)

    def _decide(
        self,
        indexes: list[int],
        locked: LockedPartitions,
        known: dict[int, dict[int, ProducerState]],
        rows: CommitRows,
    ) -> dict[int, SectionAnswer]:
        """The answers to the sections that are decided one by one."""
        nobody: dict[int, ProducerState] = {}
        answers: dict[int, SectionAnswer] = {}
        for index in indexes:
            section = self._commit.sections[index]
            if not locked.is_there[index]:
                answers[index] = SectionAnswer(-1, -1, -1, refuse_section(section.runs))
                continue
            log_end_offset = int(locked.log_end_offsets[index])
            runs, end, moved = assign_section(
                section.runs,
                log_end_offset,
                known.get(index, nobody),
                int(locked.producers_from[index]),
            )
            if end > log_end_offset:
                rows.add_extents(index, extents_of_section(section, runs), end)
            if moved:
                rows.add_producers(index, moved)
            log_start_offset, leader_epoch = locked.log_start_offsets[index], locked.leader_epochs[index]
            answers[index] = SectionAnswer(int(log_start_offset), end, int(leader_epoch), runs)
        return answers

    def _write(
        self, rows: WrittenRows, make_answers: Callable[[], list[SectionAnswer]]
    ) -> list[SectionAnswer]:
        """Send what there is to write, and make the answers while the server is busy with the first of it."""
        of_file, send = self._of_file(), self._transaction.send
        if len(rows):
            send(_COMMIT["move_partitions"], {**of_file, **rows.partition_params()})
        answers = make_answers()
        kept = write_answers(answers)
        if len(rows):
            send(_COMMIT["insert_extents"], {**of_file, **rows.extent_params()})
        if rows.any_producers:
            send(_COMMIT["write_producers"], {**of_file, **rows.producer_params()})
        self._write_file(rows, kept)
        return answers

    def _write_file(self, rows: WrittenRows, answers: bytes) -> None:
        commit, send = self._commit, self._transaction.send
        live_bytes = rows.live_bytes
        file = {
            **self._of_file(),
            "object_name": commit.object_name,
            "kind": FileKind.INGESTION.value,
            "size": commit.size,
            "directory_length": commit.directory_length,
            "owner_id": commit.session_id,
            "extents": len(rows),
            "born_bytes": live_bytes,
            "live_bytes": live_bytes,
            "sections": answers,
            "before_ms": self._now_ms - ANSWERS_KEPT_MS,
        }
        send(_COMMIT["insert_file"], file)
        send(_COMMIT["insert_result"], file)
        send(_COMMIT["forget_results"], file)

    def _of_file(self) -> dict[str, object]:
        return {"file_id": self._commit.file_id, "now_ms": self._now_ms}


def _answers(
    commit: FileCommit, locked: LockedPartitions, bulk: BulkAssignment, decided: dict[int, SectionAnswer]
) -> list[SectionAnswer]:
    """The answers to all sections, in their order; those that were decided one by one are there."""
    columns = (
        bulk.indexes,
        locked.log_start_offsets[bulk.indexes],
        bulk.base_offsets + bulk.offset_counts,
        locked.leader_epochs[bulk.indexes],
        bulk.base_offsets,
    )
    for index, log_start, end, leader_epoch, base in zip(*(each.tolist() for each in columns), strict=True):
        decided[index] = SectionAnswer(log_start, end, leader_epoch, (RunResult(base_offset=base),))
    return [decided[index] for index in range(len(commit.sections))]
