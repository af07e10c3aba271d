"""Commits that a failover or a restore has lost, and the sessions whose objects are kept because of them.

A session that was active when an incarnation began is *unsettled*. Objects below its prefix without a file
row may be acknowledged commits that the new history lacks, so garbage collection keeps them. A session that
was closed before has lost nothing: its commits precede its end in the history, and the end is there.

An unsettled session is settled once each of its objects was judged: by its own agent, which compares the
commits that it acknowledged with the catalog, or by `siltstone fsck --readopt`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import orjson

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.lifecycle.expiry import COMMIT_RESULT_RETENTION_MS
from catalog.lifecycle.missing_topics import find_missing_topics
from catalog.model import OffsetRange, RefusedRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.lifecycle.incarnation import Incarnations
    from catalog.lifecycle.missing_topics import MissingTopic
    from catalog.model import PartitionId

_SQL = load_queries("lost_commits")
_PAGE: Final = 500
_COMPARED_AT_ONCE: Final = 5_000
# The clock may have been ahead by the rest when results were deleted.
_MAX_COMPARED_AGE_MS: Final = COMMIT_RESULT_RETENTION_MS - 300_000
_FIRST: Final = UUID(int=0)
_RETENTION_MS: Final = 90 * 86_400_000
_MAX_EXPIRED_GAPS: Final = 5_000
REPORT_PERIOD_MS: Final = 60_000
"""Time from the beginning of an epoch in which agents may still report what it lacks.

Gaps in the sequences of producers, and the names of lost topics, are kept open for them. An agent needs up to
half of it to notice that its server does not respond any more.
"""
READOPTION_WAIT_MS: Final = 30_000
"""Time from the beginning of an epoch in which a readoption waits for agents that have not reported yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgedCommit:
    """Commit that an agent acknowledged; `number` is its order within the agent.

    `committed_ms` is its time by the catalog's clock. `epoch` is that of the commit, None if no section of it
    has a partition. All commits of an epoch belong to one history, so their offsets can be compared; those of
    two epochs cannot. `refused` are the runs that the commit refused.
    """

    file_id: UUID
    session_id: UUID
    object_name: str
    number: int
    committed_ms: int
    offsets: Sequence[OffsetRange]
    epoch: int | None = None
    refused: Sequence[RefusedRun] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCommit:
    """Lost commit: `outcome` is None while it waits, 'readopted' or 'unreadable' (`detail` says why).

    `old_offsets` is empty if no agent reported them; the commit may then never have been acknowledged.
    `epoch` is that of the report, and `committed_epoch` that of the commit: None if it is not known, for
    example because an agent of an earlier release reported it. Such a report also names no `refused` runs.
    """

    file_id: UUID
    session_id: UUID
    object_name: str
    number: int
    acknowledged: bool
    epoch: int
    old_offsets: Sequence[OffsetRange]
    new_offsets: Sequence[OffsetRange] = ()
    outcome: str | None = None
    detail: str | None = None
    committed_epoch: int | None = None
    refused: Sequence[RefusedRun] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsettledSession:
    """Session whose orphans are kept; `is_reported` if its agent has compared its commits."""

    session_id: UUID
    closed_ms: int
    is_reported: bool


class Comparison(NamedTuple):
    """The files of an agent's commits that the catalog lacks; `forgotten` may be lost, or have expired."""

    lost: frozenset[UUID]
    forgotten: frozenset[UUID]


class LostCommits:
    """Lost commits of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database, incarnations: Incarnations) -> None:
        self._database = database
        self._incarnations = incarnations

    def unknown(self, file_ids: Sequence[UUID]) -> frozenset[UUID]:
        """Return those of the files that the catalog does not know.

        It knows a committed file for at least an hour, and one that was committed again for 90 days.
        """
        return frozenset(row.file_id for row in self._unknown(file_ids, (0,) * len(file_ids)))

    def compare(self, commits: Sequence[AcknowledgedCommit]) -> Comparison:
        """Return which commits of an agent, in their order, the catalog has lost or may have lost.

        An unknown commit is lost if it is so young that the catalog would still have its result. The age
        counts by the catalog's clock, because the agent may have been suspended. An older one that precedes a
        known one is not lost, because a loss has no gaps.
        """
        unknown: dict[UUID, Row] = {}
        for start in range(0, len(commits), _COMPARED_AT_ONCE):
            some = commits[start : start + _COMPARED_AT_ONCE]
            rows = self._unknown([each.file_id for each in some], [each.committed_ms for each in some])
            unknown |= {row.file_id: row for row in rows}
        since_known: set[UUID] = set()
        for commit in reversed(commits):
            if commit.file_id not in unknown:
                break
            since_known.add(commit.file_id)
        old = {file_id for file_id, row in unknown.items() if row.is_old}
        return Comparison(frozenset(unknown.keys() - old), frozenset(old & since_known))

    def _unknown(self, file_ids: Sequence[UUID], committed_ms: Sequence[int]) -> list[Row]:
        params = {
            "file_ids": arrays.uuids(file_ids),
            "committed_ms": arrays.bigints(committed_ms),
            "max_age_ms": _MAX_COMPARED_AGE_MS,
            "now_ms": self._database.injected_now_ms,
        }
        return self._database.read("lost_commits.unknown", _SQL["unknown_commits"], params)

    def missing_topics(
        self, partitions: Iterable[PartitionId], committed_epoch: int | None = None
    ) -> list[MissingTopic]:
        """Return the topics of these partitions that have no row, or fewer partitions, or may be undeleted.

        `committed_epoch` is the epoch of the lost commit with these partitions, None if it is not known.
        """
        read = partial(self._database.read, "lost_commits.missing_topics")
        return find_missing_topics(read, partitions, committed_epoch=committed_epoch)

    def report(self, sessions: Sequence[UUID], lost: Sequence[AcknowledgedCommit], epoch: int) -> None:
        """Record that the agent of these sessions has compared its commits, and the lost ones.

        The objects of the lost ones are kept from now on, even if their sessions were settled before.
        CatalogReplacedError: `epoch` has ended, so the commits were compared with another history.
        """
        params = {
            "session_ids": arrays.uuids(each.session_id for each in lost),
            "file_ids": arrays.uuids(each.file_id for each in lost),
            "object_names": [each.object_name for each in lost],
            "numbers": arrays.bigints([each.number for each in lost]),
            "old_offsets": [offsets_as_json(each.offsets) for each in lost],
            "refused": [orjson.dumps([tuple(run) for run in each.refused]).decode() for each in lost],
            "epoch": epoch,
            "committed_epochs": arrays.integers([-1 if each.epoch is None else each.epoch for each in lost]),
        }
        owners = {"session_ids": arrays.uuids(sorted(sessions))}

        def work(transaction: Transaction) -> None:
            self._incarnations.require(transaction, epoch)
            now_ms = transaction.now_ms()
            transaction.send(_SQL["adopt_sessions"], {**owners, "now_ms": now_ms})
            if lost:
                transaction.send(_SQL["report_lost_commits"], {**params, "now_ms": now_ms})
                transaction.send(_SQL["keep_sessions"], {"session_ids": params["session_ids"]})
            transaction.send(_SQL["mark_reported"], owners)

        self._database.transact("lost_commits.report", work)

    def heartbeats(self, sessions: Sequence[UUID]) -> dict[UUID, int]:
        """Return the times of the last heartbeats of those of these sessions that the catalog knows.

        A time is 0 if it is later than now by the catalog's clock: a clock that was ahead proves nothing.
        """
        params = {"session_ids": arrays.uuids(sessions), "now_ms": self._database.injected_now_ms}
        rows = self._database.read("lost_commits.heartbeats", _SQL["heartbeats"], params)
        return {row.session_id: row.heartbeat_ms for row in rows}

    def settle(self, sessions: Sequence[UUID], epoch: int) -> int:
        """Let garbage collection delete the orphans of sessions; return the number of these sessions.

        Sessions are left out in which lost commits wait, or acknowledged ones are unreadable and not given
        up. CatalogReplacedError: `epoch`, in which their objects were judged, has ended: the new history may
        lack what was readopted.
        """
        params = {"session_ids": arrays.uuids(sorted(sessions))}

        def work(transaction: Transaction) -> int:
            self._incarnations.require(transaction, epoch)
            return transaction.count(_SQL["settle"], {**params, "now_ms": transaction.now_ms()})

        return self._database.transact("lost_commits.settle", work)

    def keep(self, session_id: UUID) -> None:
        """Keep the objects of a closed session, although it may be settled."""
        params = {"session_ids": arrays.uuids([session_id])}

        def work(transaction: Transaction) -> None:
            transaction.send(_SQL["keep_sessions"], params)

        self._database.transact("lost_commits.keep", work)

    def keep_waiting(self, file_id: UUID, session_id: UUID, object_name: str, epoch: int) -> None:
        """Let a lost file wait that may have been acknowledged; its object is kept."""
        params = {
            "file_id": file_id,
            "session_id": session_id,
            "object_name": object_name,
            "epoch": epoch,
        }

        def work(transaction: Transaction) -> None:
            transaction.send(_SQL["keep_waiting"], {**params, "now_ms": transaction.now_ms()})

        self._database.transact("lost_commits.keep_waiting", work)

    def discard(self, file_id: UUID) -> None:
        """Let a lost file wait no longer, unless an agent reported it as acknowledged."""

        def work(transaction: Transaction) -> None:
            transaction.send(_SQL["discard"], {"file_id": file_id})

        self._database.transact("lost_commits.discard", work)

    def mark_unreadable(
        self, file_id: UUID, session_id: UUID, object_name: str, detail: str, *, gives_up: bool = False
    ) -> None:
        """Record that a lost file cannot be committed again, because of its object.

        If it was acknowledged, its session stays unsettled, and its object is kept, until it is given up.
        """
        params = {
            "file_id": file_id,
            "session_id": session_id,
            "object_name": object_name,
            "detail": detail,
            "gives_up": gives_up,
        }

        def work(transaction: Transaction) -> None:
            transaction.send(_SQL["mark_unreadable"], {**params, "now_ms": transaction.now_ms()})

        self._database.transact("lost_commits.mark_unreadable", work)

    def unsettled_sessions(self) -> Iterator[UnsettledSession]:
        """Yield the unsettled sessions, read page by page."""
        after = _FIRST
        while rows := self._database.read(
            "lost_commits.unsettled", _SQL["unsettled_sessions"], {"after": after, "limit": _PAGE}
        ):
            yield from (UnsettledSession(**row._asdict()) for row in rows)
            after = rows[-1].session_id

    def is_any_unsettled(self) -> bool:
        """Return True if a session is unsettled."""
        params = {"after": _FIRST, "limit": 1}
        return bool(self._database.read("lost_commits.unsettled", _SQL["unsettled_sessions"], params))

    def unverified(self, silent_ms: int) -> int:
        """Return how many agents that lived when the incarnation began have not compared their commits."""
        params = {
            "silent_ms": silent_ms,
            "wait_ms": READOPTION_WAIT_MS,
            "now_ms": self._database.injected_now_ms,
        }
        (row,) = self._database.read("lost_commits.unverified", _SQL["count_unverified"], params)
        return int(row.sessions)

    def list(self, *, waiting: bool = False, unreadable: bool = False) -> Iterator[LostCommit]:
        """Yield the lost commits by session and in the order of their commits, read page by page.

        With `waiting`, only those that wait. With `unreadable`, also those that were acknowledged, could not
        be read, and are not given up.
        """
        params: dict[str, object] = {
            "after_session": _FIRST,
            "after_number": -1,
            "after_file": _FIRST,
            "waiting": waiting or unreadable,
            "unreadable": unreadable,
            "limit": _PAGE,
        }
        while rows := self._database.read("lost_commits.list", _SQL["lost_commits"], params):
            yield from map(_lost_from_row, rows)
            last = rows[-1]
            params |= {
                "after_session": last.session_id,
                "after_number": last.number,
                "after_file": last.file_id,
            }

    def expire(self) -> int:
        """Delete records of lost commits that were settled 90 days ago; return their number."""

        def work(transaction: Transaction) -> int:
            before_ms = transaction.now_ms() - _RETENTION_MS
            return transaction.count(_SQL["expire_lost_commits"], {"before_ms": before_ms, "limit": 5000})

        return self._database.transact("lost_commits.expire", work)

    def expire_gaps(self) -> int:
        """Delete gaps in the sequences of producers that are as old; return their number."""

        def work(transaction: Transaction) -> int:
            before_ms = transaction.now_ms() - _RETENTION_MS
            return transaction.count(
                _SQL["expire_gaps"], {"before_ms": before_ms, "limit": _MAX_EXPIRED_GAPS}
            )

        return self._database.transact("lost_commits.expire_gaps", work)


def offsets_as_json(offsets: Iterable[OffsetRange]) -> str:
    """Return offsets as the catalog stores them: arrays of topic id, partition, base and end offset."""
    return orjson.dumps([tuple(each) for each in offsets]).decode()


def _lost_from_row(row: Row) -> LostCommit:
    return LostCommit(
        file_id=row.file_id,
        session_id=row.session_id,
        object_name=row.object_name,
        number=row.number,
        acknowledged=row.acknowledged,
        epoch=row.epoch,
        old_offsets=_offsets(row.old_offsets),
        new_offsets=_offsets(row.new_offsets or "[]"),
        outcome=row.outcome,
        detail=row.detail,
        committed_epoch=row.committed_epoch,
        refused=tuple(RefusedRun(*each) for each in orjson.loads(row.refused)),
    )


def _offsets(text: str) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(*each) for each in orjson.loads(text))
