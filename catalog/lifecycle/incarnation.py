"""Incarnations of the catalog: detection of a server that continues on another history of commits.

A failover to an asynchronous standby, and a restore from a backup, lose the last commits. Offsets would be
assigned twice, and the lost files would look like garbage. Each process therefore compares what it knows of
the history with the server: at each commit in the commit's own transaction, and at each heartbeat and
registration. All of them look at all four kinds of evidence:

- The server has another identity than the recorded one: system identifier, timeline, database or table. Every
  promotion and every restore by `pg_restore` changes it.
- The recorded incarnation is not the one that this process knows, and not a later one.
- The WAL ends before a position that this process saw flushed: a snapshot of the disks was restored.
- The last commit that this process acknowledged is unknown. The WAL of a restored snapshot may already be
  longer than what this process saw flushed, which excludes its last commit.

After a difference no commit succeeds until a transaction has begun a new incarnation. It fences all sessions
(see `catalog.commit.attempt`: a commit locks its session), so that commits of the old history fail. The
operator declares a restore that leaves none of these traces (`siltstone fsck --restored`).

The epoch of the incarnation is the leader epoch of all partitions in the object store. Epochs follow the
time, in units of ten seconds: a restored catalog does not know the incarnations that began after its backup,
and must not use their epochs again. Ids of producers and nodes follow the epoch for the same reason.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from catalog.database.sql_files import load_queries
from catalog.errors import CatalogReplacedError

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction

_SQL = load_queries("incarnation")
_log = structlog.get_logger(__name__)
_FIRST_EPOCH_MS: Final = 1_577_836_800_000  # 2020-01-01
_EPOCH_MS: Final = 10_000
_PRODUCER_IDS_PER_EPOCH: Final = 10_000_000_000
# If the clock steps back, the lost history may have assigned as many ids, and used as many leader epochs of a
# local partition.
_PRODUCER_ID_MARGIN: Final = 1_000_000_000
_NODE_ID_MARGIN: Final = 10_000
LOCAL_EPOCH_MARGIN: Final = 1_000
MAX_COMMIT_AGE_SECONDS: Final = 1800.0
"""Age up to which a commit must be known: the catalog stores the result of a commit for an hour.

The age counts by the clocks of the catalog and of this machine: one may jump, and the other stands still
while it is suspended.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """One history of commits on one server. `epoch` is the leader epoch of partitions in the object store."""

    epoch: int
    incarnation_id: UUID
    started_ms: int
    reason: str


class Evidence(NamedTuple):
    """A process's knowledge of a history: incarnation, durable position of the WAL, its last commit.

    `last_commit` is None if the process has not committed lately; `commit_ms` is the catalog's time of it.
    """

    incarnation: Incarnation | None
    flushed: int
    last_commit: UUID | None
    commit_ms: int = 0


class RecoveryBacklog(NamedTuple):
    """What waits after a loss: unsettled sessions, whose objects are kept, and lost commits."""

    unsettled_sessions: int = 0
    waiting_commits: int = 0


class _LastCommit(NamedTuple):
    """Last commit of this process: its time by the catalog's clock, and by that of this machine."""

    file_id: UUID
    committed_ms: int
    at: float


class _Beginning(NamedTuple):
    """Incarnation that is about to begin."""

    incarnation_id: UUID
    reason: str


class Incarnations:
    """What this process knows of the catalog's history; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._known: Incarnation | None = None
        self._flushed = 0
        self._last_commit: _LastCommit | None = None
        self.backlog = RecoveryBacklog()

    @property
    def evidence(self) -> Evidence:
        """What this process has seen of the known incarnation, and a server must have to continue it.

        Read it before the query whose result is compared: another thread may commit between the query and the
        comparison, beyond the position that the query found.
        """
        with self._lock:
            known, flushed, last = self._known, self._flushed, self._last_commit
        if last is None or self._database.monotonic() - last.at >= MAX_COMMIT_AGE_SECONDS:
            return Evidence(known, flushed, None)
        return Evidence(known, flushed, last.file_id, last.committed_ms)

    @property
    def is_recovering(self) -> bool:
        """Return True if lost commits may still be readopted, as of the last heartbeat of this process."""
        return self.backlog.unsettled_sessions > 0

    def warning(self) -> str | None:
        """Return what an operator must decide, or None."""
        if not self.backlog.waiting_commits:
            return None
        return (
            f"{self.backlog.waiting_commits} files lost their commits and wait: "
            "run `siltstone fsck --readopt`, then `siltstone fsck --readopt --apply`"
        )

    def current(self) -> Incarnation:
        """Return the recorded incarnation, without a comparison."""
        params = self._params(None)
        return _from_row(self._database.read("incarnation.current", _SQL["read_incarnation"], params)[0])

    def ensure(self) -> Incarnation:
        """Return the current incarnation; begin a new one if the server continues on another history."""
        seen = self.evidence
        row = self._database.read(
            "incarnation.read", _SQL["read_incarnation"], self._params(seen.last_commit)
        )[0]
        if row.server is not None and _difference(row, seen) is None:
            return self.adopt(row)
        return self.adopt(self._database.transact("incarnation.ensure", self.lock))

    def is_current(self, epoch: int) -> bool:
        """Return True if the server continues the history of this epoch, as far as this process can know."""
        seen = self.evidence
        row = self._database.read(
            "incarnation.read", _SQL["read_incarnation"], self._params(seen.last_commit)
        )[0]
        return bool(row.is_current) and row.epoch == epoch and _difference(row, seen) is None

    def declare_restore(self, reason: str) -> Incarnation:
        """Begin a new incarnation, although nothing shows that the history is another one."""
        declared = _Beginning(self._database.new_uuid(), reason)
        return self.adopt(
            self._database.transact("incarnation.declare_restore", partial(self.lock, declared=declared))
        )

    def lock(self, transaction: Transaction, *, declared: _Beginning | None = None) -> Row:
        """Lock the incarnation, and begin a new one if needed; return its row for `adopt`.

        The caller calls `adopt` after its transaction. A repeated call begins no second incarnation, unless
        the first one was rolled back.
        """
        seen = self.evidence
        transaction.send(_SQL["lock_incarnation"])
        row = transaction.rows(_SQL["read_incarnation"], self._params(seen.last_commit))[0]
        if row.server is None:
            transaction.send(_SQL["record_server"])
        if declared is not None:
            if row.incarnation_id == declared.incarnation_id:  # the response of an earlier attempt was lost
                return row
            self._begin(transaction, row, seen, declared, is_restore=True)
        elif (reason := _difference(row, seen)) is not None:
            found = _Beginning(self._database.new_uuid(), reason)
            self._begin(transaction, row, seen, found, is_restore=not _is_promotion(row))
        elif row.server is not None:
            return row
        return transaction.rows(_SQL["read_incarnation"], self._params(None))[0]

    def check(self, transaction: Transaction) -> Row:
        """Return the incarnation's row for `adopt`, or raise CatalogReplacedError; takes no lock."""
        seen = self.evidence
        row = transaction.rows(_SQL["read_incarnation"], self._params(seen.last_commit))[0]
        reason = _difference(row, seen)
        if reason is not None:
            raise replaced_error(reason)
        return row

    def require(self, transaction: Transaction, epoch: int) -> None:
        """Raise CatalogReplacedError unless `epoch` is current; it stays so until the transaction ends."""
        transaction.send(_SQL["hold_incarnation"])
        current = self.check(transaction).epoch
        if current != epoch:
            raise epoch_ended_error(epoch, current)

    def adopt(self, row: Row) -> Incarnation:
        """Remember the incarnation and the WAL position of a row that `lock` or `check` returned."""
        found = _from_row(row)
        with self._lock:
            if self._known is None or self._known.incarnation_id != found.incarnation_id:
                self._known, self._flushed, self._last_commit = found, 0, None
            self._flushed = max(self._flushed, row.flushed or 0)
            last = self._last_commit
            if last is not None and last.committed_ms < row.oldest_commit_ms:
                self._last_commit = None
            self.backlog = RecoveryBacklog(row.unsettled_sessions, row.waiting_commits)
        return found

    def committed(self, file_id: UUID, epoch: int, flushed: int, committed_ms: int) -> None:
        """Remember the last commit of this process, and the durable position of the WAL that it has read."""
        with self._lock:
            if self._known is not None and self._known.epoch == epoch:
                self._flushed = max(self._flushed, flushed)
                self._last_commit = _LastCommit(file_id, committed_ms, self._database.monotonic())

    def _params(self, file_id: UUID | None) -> dict[str, object]:
        """Return the parameters of `read_incarnation` for a comparison with the commit of a file, or none."""
        return {
            "file_id": file_id,
            "max_age_ms": round(1000 * MAX_COMMIT_AGE_SECONDS),
            "now_ms": self._database.injected_now_ms,
        }

    def _begin(
        self, transaction: Transaction, row: Row, seen: Evidence, beginning: _Beginning, *, is_restore: bool
    ) -> None:
        now_ms = transaction.now_ms()
        known = max(row.epoch, -1 if seen.incarnation is None else seen.incarnation.epoch)
        epoch = max(known + 1, (now_ms - _FIRST_EPOCH_MS) // _EPOCH_MS)
        params = {**beginning._asdict(), "epoch": epoch, "now_ms": now_ms}
        transaction.send(_SQL["begin_incarnation"], params)
        transaction.send(_SQL["fence_all_sessions"], params)
        first_id = epoch * _PRODUCER_IDS_PER_EPOCH
        transaction.send(_SQL["skip_producer_ids"], {"margin": _PRODUCER_ID_MARGIN, "first": first_id})
        transaction.send(_SQL["fence_transactional_ids"])
        transaction.send(_SQL["skip_node_ids"], {"margin": _NODE_ID_MARGIN, "first": epoch})
        transaction.send(_SQL["skip_local_epochs"], {"margin": LOCAL_EPOCH_MARGIN, "first": epoch})
        if is_restore:
            # Garbage collection may have deleted inputs since the backup. The outputs of a lost publication
            # stay, because the catalog does not know their job any more.
            transaction.send(_SQL["release_open_claims"])
            transaction.send(_SQL["release_claimed_files"])
            transaction.send(_SQL["delete_job_files"])
            transaction.send(_SQL["delete_open_jobs"])
        else:
            transaction.send(_SQL["supersede_attempts"])
        transaction.send(_SQL["void_group_claims"])
        _log.error(
            "the catalog continues on another history of commits: the last commits may be lost",
            epoch=epoch,
            reason=beginning.reason,
            remedy="see docs/how-to/restore.md; agents commit their lost files again, "
            "`siltstone fsck --readopt` lists the others",
        )


def _difference(row: Row, seen: Evidence) -> str | None:
    """Return why the server continues on another history than that which was seen before, or None."""
    if row.server is None or row.found_server is None:
        return None  # no session yet, or a standby, on which nothing can be committed
    if row.server != row.found_server:
        return f"the server changed from {_describe(row.server)} to {_describe(row.found_server)}"
    known = seen.incarnation
    if known is None or (known.incarnation_id != row.incarnation_id and known.epoch < row.epoch):
        return None
    if known.incarnation_id != row.incarnation_id:
        return f"epoch {known.epoch} that agents have seen is unknown"
    if row.inserted < seen.flushed:
        return f"the WAL ends at byte {row.inserted}, and agents have seen byte {seen.flushed}"
    is_known = row.knows_commit or seen.commit_ms < row.oldest_commit_ms
    return None if is_known else "an acknowledged commit is unknown"


def replaced_error(reason: str) -> CatalogReplacedError:
    """Return the error for an operation on a server that continues on another history."""
    return CatalogReplacedError(
        f"the catalog continues on another history of commits: {reason}", remedy="register a new session"
    )


def epoch_ended_error(epoch: int, current: int) -> CatalogReplacedError:
    """Return the error for an operation that began in an epoch that has ended."""
    return CatalogReplacedError(
        f"the catalog continues on another history of commits: epoch {current} has begun since epoch {epoch}",
        remedy="begin the operation again",
    )


def _is_promotion(row: Row) -> bool:
    """Return True if only the timeline of the server changed: a standby was promoted."""
    before, after = str(row.server).split("/"), str(row.found_server).split("/")
    return before[1] != after[1] and before[:1] + before[2:] == after[:1] + after[2:]


def _describe(server: str) -> str:
    """Return the parts of a server's identity by name."""
    names = ("system", "timeline", "database", "table")
    return ", ".join(f"{name} {part}" for name, part in zip(names, server.split("/"), strict=False))


def _from_row(row: Row) -> Incarnation:
    return Incarnation(
        epoch=row.epoch,
        incarnation_id=row.incarnation_id,
        started_ms=row.started_ms,
        reason=row.reason,
    )
