"""Commits of ingestion files, and of lost ones again.

A commit is idempotent: a retry for a committed file returns the stored results of the first commit, with the
current log start offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.commit.assignment import check_commit
from catalog.commit.attempt import CommitAttempt, lock_together
from catalog.commit.notifications import announce
from catalog.commit.readoption import AcknowledgedReadoption, Readoption
from catalog.commit.results import section_results
from catalog.database.pool import Reserve
from catalog.errors import InvalidCommitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from catalog.database.pool import Database, Transaction
    from catalog.lifecycle.incarnation import Incarnations
    from catalog.model import FileCommit, PartitionId, RefusedRun, SectionResult


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
        (results,) = self.commit_together([commit], with_extents=with_extents)
        return results

    def commit_together(
        self, commits: Sequence[FileCommit], *, with_extents: bool = False
    ) -> list[tuple[SectionResult, ...]]:
        """Commit files of one session in their order in one transaction, all or none; return their results.

        The results are those of commits one after the other. All files share one flush of the WAL. The errors
        are those of `commit`, and then no file is committed. A repeated call may have other files, because
        each file keeps its own results. InvalidCommitError: there are several files, and they have several
        sessions, or transactions.
        """
        for commit in commits:
            check_commit(commit)
        if len({commit.session_id for commit in commits}) > 1:
            raise InvalidCommitError("the files of one transaction have several sessions")

        def work(transaction: Transaction) -> list[tuple[tuple[SectionResult, ...], CommitAttempt, int]]:
            attempts = [
                CommitAttempt(
                    transaction,
                    commit,
                    self._database.injected_now_ms,
                    self._incarnations.evidence,
                    is_recovering=self._incarnations.is_recovering,
                )
                for commit in commits
            ]
            if len(attempts) > 1:
                for attempt in attempts:
                    attempt.require_no_transaction()
                lock_together(transaction, commits)
            done = []
            for commit, attempt in zip(commits, attempts, strict=True):
                outcomes, committed_ms = attempt.run()
                # The server processes the last statements while the results are built.
                results = section_results(outcomes, commit, committed_ms, with_extents=with_extents)
                done.append((results, attempt, committed_ms))
            return done

        done = self._database.transact("commits.commit", work, reserve=Reserve.COMMITS)
        for commit, (_, attempt, committed_ms) in zip(commits, done, strict=True):
            self._incarnations.committed(commit.file_id, attempt.epoch, attempt.flushed, committed_ms)
        return [results for results, *_ in done]

    def readopt(
        self,
        commit: FileCommit,
        *,
        acknowledged: bool = False,
        refused: Iterable[RefusedRun] = (),
        epoch: int | None = None,
        committed_epoch: int | None = None,
        discard_unknown_topics: bool = False,
    ) -> tuple[SectionResult, ...]:
        """Commit a file again whose commit was lost, behind the log ends; return the results by section.

        The rules of an ordinary commit apply: batches of idempotent producers that the log has already are
        dropped, and sections of deleted topics are rejected. With `acknowledged`, a batch is appended also if
        batches before it are missing, or if its producer has begun another epoch since: its producer has the
        acknowledgement and does not send it again. The catalog records which sequence numbers are missing. A
        later readoption that has them appends them (`catalog.commit.sequence_gaps`). `refused` are the runs
        that the lost commit refused. Their producers may have sent them again in later files, behind those
        that were missing, so this readoption refuses them, too.

        The session must be closed and unsettled, so that garbage collection keeps its objects; a session that
        the catalog does not know becomes so. `lost_commits` records the new offsets. The call may be
        repeated. SessionFencedError: the session may still commit, or was settled. CommitResultExpiredError:
        the file was committed so long ago that the results are no longer stored. CatalogReplacedError:
        `epoch`, in which the file was found to be lost, has ended. MissingTopicsError: the creation of a
        topic or of its partitions was lost, too, or an undeletion: the topic was not deleted after
        `committed_epoch`, the epoch of the lost commit. With `discard_unknown_topics`, their sections are
        rejected instead.
        """
        check_commit(commit)
        kind = AcknowledgedReadoption if acknowledged else Readoption

        def work(transaction: Transaction) -> tuple[SectionResult, ...]:
            attempt = kind(
                transaction,
                commit,
                self._database.injected_now_ms,
                self._incarnations.evidence,
                refused=refused,
                required_epoch=epoch,
                committed_epoch=committed_epoch,
                discards_unknown_topics=discard_unknown_topics,
            )
            outcomes, committed_ms = attempt.run()
            return section_results(outcomes, commit, committed_ms, with_extents=False)

        return self._database.transact("commits.readopt", work)

    def announce(self, partitions: Iterable[PartitionId], origin: UUID) -> int:
        """Notify watchers that `origin` committed to these partitions; the commits must be durable.

        Return the number of bytes of the notifications, which depends on the watchers.
        """
        return announce(self._database, partitions, origin)
