"""Garbage collection: delete objects that nothing refers to, then the rows about them.

Objects are deleted before their rows, for both kinds of garbage. This order makes each step safe to repeat.

A *dead file* was marked in the transaction that removed its last extent. The catalog names it once it has
been dead for the grace period and no open job reads it. If its object is already gone, an earlier round
stopped before it removed the row. That conclusion requires the catalog's own store, so a round first verifies
the store binding.

Objects that cannot be deleted do not hold up the others: the catalog records a back-off for each such file,
and for the owner of each such orphan, and the round continues.

An *orphan* is an object without a file row. Its owner (session or job) must have ended, so that the object
can no longer be committed. A round lists only the prefixes of owners that have ended, so its cost depends on
the garbage and not on all stored data. Clock differences between machines do not matter.

A round reads candidates first. Just before it deletes objects or aborts uploads, the primary confirms that it
may, in a transaction that writes (`catalog.lifecycle.deletions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from catalog.lifecycle.expiry import OwnerKind
from maintenance.listing import files_beside_objects
from maintenance.owners import Owners, Ownership, owner_of
from maintenance.report import MaintenanceReport, no_progress
from maintenance.retention import remove_expired
from maintenance.silence import fence_silent
from object_store import names
from object_store.accounting import Purpose
from object_store.binding import require_bound
from object_store.errors import ObjectsNotDeletedError
from object_store.names import Layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from catalog.lifecycle.expiry import InactiveOwner
    from catalog.open import Catalog
    from core.clock import Clock
    from maintenance.report import Progress
    from maintenance.settings import MaintenanceSettings
    from object_store.interface import ObjectInfo, ObjectStore

OWNERS_AT_ONCE = 100
# Agents use extents for less than this time after their lookup, and must still ask for aborted transactions.
_READ_MS: Final = 60_000


def collect_garbage(
    catalog: Catalog, store: ObjectStore, clock: Clock, settings: MaintenanceSettings
) -> MaintenanceReport:
    """Run one round; it may be interrupted and repeated at any point, also by several processes at once.

    Reject a store that is not the catalog's: there every absent object would count as deleted.
    """
    require_bound(store, catalog.store_binding)
    catalog.incarnations.ensure()
    report = MaintenanceReport()
    remove_expired(catalog, report)
    fence_silent(catalog, settings, report)
    remove_deleted_topics(catalog, settings, report)
    collect_dead_files(catalog, store, clock, settings, report)
    collect_orphans(catalog, store, clock, settings, report)
    if catalog.expiry.claim_periodic_task("producers", settings.producer_check_ms):
        expire_rows(catalog, settings, report)
    return report


def remove_deleted_topics(
    catalog: Catalog,
    settings: MaintenanceSettings,
    report: MaintenanceReport,
    progress: Progress = no_progress,
) -> None:
    """Remove the rows of topics that were deleted `topic_delete_delay_ms` ago."""
    while removed := catalog.garbage.remove_deleted(delay_ms=settings.topic_delete_delay_ms):
        report.removed_rows += removed
        progress()


def collect_dead_files(
    catalog: Catalog,
    store: ObjectStore,
    clock: Clock,
    settings: MaintenanceSettings,
    report: MaintenanceReport,
    progress: Progress = no_progress,
) -> None:
    """Delete the objects that have been dead for the grace period."""
    before_ms = clock.now_ms() - settings.grace_ms
    _delete_dead_files(catalog, store, before_ms, settings.batch, report, progress)


def collect_orphans(
    catalog: Catalog,
    store: ObjectStore,
    clock: Clock,
    settings: MaintenanceSettings,
    report: MaintenanceReport,
    progress: Progress = no_progress,
) -> None:
    """Abort the uploads and delete the orphans of owners that have ended, and later the owners' rows."""
    # After a failover, no orphan may be deleted before the incarnation begins.
    catalog.incarnations.ensure()
    # Uploads first: none may be left when their owner's row is removed below.
    _sweep_uploads(catalog, store, clock.now_ms(), settings, report)
    catalog.incarnations.ensure()
    progress()
    _clear_up_after_owners(catalog, store, settings, report, progress)


def expire_rows(catalog: Catalog, settings: MaintenanceSettings, report: MaintenanceReport) -> None:
    """Delete idle producers, and rows that no retry needs any more; forget transactions that left nothing."""
    report.expired_producers += catalog.expiry.expire_producers(settings.producer_idle_ms)
    catalog.expiry.expire_commit_results()
    catalog.expiry.expire_deleted_topics()
    catalog.lost_commits.expire()
    catalog.lost_commits.expire_gaps()
    while catalog.transactions.expire_idle(settings.transactional_id_expiration_ms):
        pass  # some producers use another transactional id for each transaction
    while catalog.transactions.settle(max(settings.grace_ms, _READ_MS)):
        pass


def _sweep_uploads(
    catalog: Catalog,
    store: ObjectStore,
    now_ms: int,
    settings: MaintenanceSettings,
    report: MaintenanceReport,
) -> None:
    """Abort uploads that were never completed, once their owner can no longer publish them.

    Uploads of a live session or an open job are never aborted. If the catalog does not know the owner, or the
    store cannot name it, age alone decides.
    """
    owners = Owners(catalog)
    old_before_ms = now_ms - settings.unfinished_upload_ms

    def may_abort(name: str, begun_ms: int) -> bool:
        parsed = names.parse(name)
        if parsed is None:
            return False
        owner = owners.of(parsed)
        kind, owner_id = owner_of(parsed)
        if owner.state is Ownership.UNKNOWN:
            return begun_ms < old_before_ms and catalog.deletions.confirm_unknown(kind, owner_id)
        before_ms = now_ms - settings.grace_ms
        return owner.ended_before(before_ms) and catalog.deletions.confirm_ended(kind, owner_id, before_ms)

    try:
        report.aborted_uploads += store.sweep_unfinished(
            old_before_ms, purpose=Purpose.GC, may_abort=may_abort
        )
    except ObjectsNotDeletedError as error:
        report.not_deleted += len(error.failures)


def _delete_dead_files(
    catalog: Catalog,
    store: ObjectStore,
    before_ms: int,
    batch: int,
    report: MaintenanceReport,
    progress: Progress,
) -> None:
    files = catalog.garbage.dead_files(before_ms, batch)
    while files:
        confirmed = catalog.deletions.confirm_dead_files([file.file_id for file in files], before_ms)
        deletable = [file for file in files if file.file_id in confirmed]
        remaining = _delete(store, [file.object_name for file in deletable])
        gone = [file for file in deletable if file.object_name not in remaining]
        catalog.garbage.delete_rows([file.file_id for file in gone])
        if remaining:
            catalog.garbage.postpone([file.file_id for file in files if file.object_name in remaining])
        report.dead_files += len(gone)
        report.dead_bytes += sum(file.size for file in gone)
        report.not_deleted += len(remaining)
        progress()
        files = catalog.garbage.dead_files(before_ms, batch, after=files[-1])


def _clear_up_after_owners(
    catalog: Catalog,
    store: ObjectStore,
    settings: MaintenanceSettings,
    report: MaintenanceReport,
    progress: Progress,
) -> None:
    """Delete the orphans of ended sessions and jobs, and later the rows of these owners.

    Each owner is swept twice: after the grace period, and before its row is removed, because an attempt that
    was thought dead may have written in between.
    """
    sweep = OrphanSweep(catalog, store, settings, report, progress)
    ended_for_ms = max(settings.owner_keep_ms, settings.grace_ms)
    for kind in OwnerKind:
        for clean in sweep.pages(kind, settings.grace_ms, unswept=True):
            catalog.expiry.mark_swept(clean)
        for clean in sweep.pages(kind, ended_for_ms, unswept=False):
            report.removed_owners += catalog.expiry.delete_owners(clean)


@dataclass(slots=True)
class OrphanSweep:
    """Deletion of the orphans of ended owners, in one round."""

    catalog: Catalog
    store: ObjectStore
    settings: MaintenanceSettings
    report: MaintenanceReport
    progress: Progress
    _layouts: tuple[Layout, ...] = ()

    def pages(self, kind: OwnerKind, ended_for_ms: int, *, unswept: bool) -> Iterator[list[InactiveOwner]]:
        """Delete the orphans of all owners, page by page; yield those owners of a page that left none.

        The others are put off, so that they do not come first again.
        """
        list_owners = partial(
            self.catalog.expiry.inactive_owners, kind, ended_for_ms, OWNERS_AT_ONCE, unswept=unswept
        )
        owners = list_owners()
        while owners:
            clean = [owner for owner in owners if self._delete_orphans(owner)]
            if len(clean) < len(owners):
                self.catalog.expiry.postpone([owner for owner in owners if owner not in clean])
            yield clean
            owners = list_owners(after=owners[-1])

    def _delete_orphans(self, owner: InactiveOwner) -> bool:
        """Delete the orphans of an ended owner; return True if all of them are gone."""
        self.progress()
        before = self.report.not_deleted
        found: list[ObjectInfo] = []
        for prefix in self._prefixes(owner):
            for each in _orphans(self.catalog, self.store, prefix):
                found.append(each)
                if len(found) == self.settings.batch:
                    self._delete_batch(owner, found)
                    found = []
        self._delete_batch(owner, found)
        return self.report.not_deleted == before

    def _delete_batch(self, owner: InactiveOwner, found: Sequence[ObjectInfo]) -> None:
        """Delete those of the objects that are still orphans, just after the catalog has confirmed it."""
        if not found:
            return
        before_ms = self.catalog.clock.now_ms() - self.settings.grace_ms
        confirmed = self.catalog.deletions.confirm_orphans(
            owner.kind, owner.owner_id, before_ms, [each.name for each in found]
        )
        orphans = [each for each in found if each.name in confirmed]
        left = _delete(self.store, [each.name for each in orphans])
        gone = [each for each in orphans if each.name not in left]
        self.report.orphans += len(gone)
        self.report.orphan_bytes += sum(each.size for each in gone)
        self.report.not_deleted += len(left)

    def _prefixes(self, owner: InactiveOwner) -> list[str]:
        """Return the prefixes below which an owner may have written.

        Names without a hash exist only until the files of earlier versions have expired or were compacted. A
        round checks once whether there are any, so that afterwards an owner costs one LIST.
        """
        if not self._layouts:
            unhashed = next(iter(self.store.list(names.UNHASHED_PREFIX, purpose=Purpose.GC)), None)
            self._layouts = (Layout.HASHED,) if unhashed is None else (Layout.UNHASHED, Layout.HASHED)
        if owner.kind is OwnerKind.SESSION:
            return [names.ingestion_prefix(owner.owner_id, layout) for layout in self._layouts]
        return [names.compacted_prefix(owner.owner_id, layout=layout) for layout in self._layouts]


def _orphans(catalog: Catalog, store: ObjectStore, prefix: str) -> Iterator[ObjectInfo]:
    """Yield objects of an ended owner that are not files, by reads that are confirmed later."""
    for file, info in files_beside_objects(catalog, store, prefix, Purpose.GC):
        if file is None and info is not None and names.parse(info.name) is not None:
            yield info


def _delete(store: ObjectStore, object_names: Sequence[str]) -> frozenset[str]:
    """Delete objects and return the names of those that still exist."""
    try:
        store.delete(object_names, purpose=Purpose.GC)
    except ObjectsNotDeletedError as error:
        return frozenset(error.failures)
    return frozenset()
