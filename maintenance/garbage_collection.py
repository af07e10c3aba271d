"""Deletes what nobody needs any more: first the objects, and only once they are gone, their rows.

The order is what makes it safe, and is the same for both kinds of garbage. A *dead file* was marked in the
transaction that took its last extent; the catalog names it once it has been dead for the grace period and no
open job reads it. When its object is gone already, an earlier round was broken off before it forgot the row:
that conclusion needs the catalog's own store, so a round begins by making sure of it. An *orphan* is an
object without a file: its owner must be over (so that it cannot be committed any more) before the catalog is
asked for the last time whether it has become a file. Only the prefixes of owners that are over are listed, so
that a round costs what was left over and not what is stored. By whose clock an object is old does not matter.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from catalog.lifecycle.expiry import OwnerKind
from core.errors import InvalidInputError
from maintenance.listing import files_beside_objects
from maintenance.owners import Owners, Ownership
from maintenance.retention import expire
from object_store import names
from object_store.binding import require_tied
from object_store.errors import ObjectsNotDeletedError
from object_store.interface import Purpose

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from catalog.lifecycle.expiry import InactiveOwner
    from catalog.open import Catalog
    from core.clock import Clock
    from object_store.interface import ObjectInfo, ObjectStore

DAY_MS = 24 * 60 * 60 * 1000
OWNERS_AT_ONCE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageSettings:
    """How long things are kept; milliseconds. `docs/explanation/planner.md` has the reasons.

    `grace_ms` must exceed how long any reader keeps what it looked up. `owner_keep_ms` is how long sessions
    and jobs are remembered that are over. A producer that is idle for `producer_idle_ms` is forgotten, which
    is looked into every `producer_check_ms`: Kafka's producer.id.expiration.ms and its check.interval.ms.
    """

    grace_ms: int = 60_000
    session_silence_ms: int = 60_000
    unfinished_upload_ms: int = DAY_MS
    owner_keep_ms: int = DAY_MS
    producer_idle_ms: int = DAY_MS
    producer_check_ms: int = 600_000
    batch: int = 1000

    def __post_init__(self) -> None:
        """Refuse times that cannot be, and batches of nothing."""
        times = [getattr(self, field.name) for field in fields(self) if field.name.endswith("_ms")]
        if min(times) < 0 or self.batch < 1:
            raise InvalidInputError(
                f"garbage settings are out of range: {self}",
                remedy="give times of at least 0 ms, and batches of at least one object",
            )


@dataclass(slots=True, kw_only=True)
class GarbageReport:
    """What a round of garbage collection did; objects that would not go are there for the next round."""

    expired_extents: int = 0
    expired_bytes: int = 0
    fenced_sessions: int = 0
    removed_rows: int = 0
    dead_files: int = 0
    dead_bytes: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    swept_uploads: int = 0
    forgotten_owners: int = 0
    forgotten_producers: int = 0
    not_deleted: int = 0

    def as_dict(self) -> dict[str, int]:
        """For reports."""
        return asdict(self)


def collect_garbage(
    catalog: Catalog, store: ObjectStore, clock: Clock, settings: GarbageSettings
) -> GarbageReport:
    """One round over everything; may be broken off and repeated at any point, also by several at once.

    Refuses a store that is not the catalog's: an object that is absent counts as deleted.
    """
    require_tied(store, catalog.store_binding)
    report = GarbageReport()
    expired = expire(catalog)
    report.expired_extents, report.expired_bytes = expired.extents, expired.size
    report.fenced_sessions = len(catalog.sessions.fence_silent(settings.session_silence_ms))
    while removed := catalog.garbage.remove_deleted():
        report.removed_rows += removed
    _delete_dead_files(catalog, store, clock.now_ms() - settings.grace_ms, settings.batch, report)
    # Uploads first: none of an owner that is forgotten below may be left.
    report.swept_uploads = _sweep_uploads(catalog, store, clock.now_ms(), settings)
    _clear_up_after_owners(catalog, store, settings, report)
    if catalog.expiry.claim_periodic_task("producers", settings.producer_check_ms):
        report.forgotten_producers = catalog.expiry.expire_producers(settings.producer_idle_ms)
        catalog.expiry.expire_commit_results()
        catalog.expiry.expire_deleted_topics()
    return report


def _sweep_uploads(catalog: Catalog, store: ObjectStore, now_ms: int, settings: GarbageSettings) -> int:
    """Drop uploads that were never completed, once nobody can publish what they would become.

    Never those of a live session or an open job, however old. Of an owner that the catalog does not know, and
    where a store cannot say whose an upload is, age alone decides.
    """
    owners = Owners(catalog)
    old_before_ms = now_ms - settings.unfinished_upload_ms

    def may_go(name: str, begun_ms: int) -> bool:
        parsed = names.parse(name)
        if parsed is None:
            return False
        owner = owners.of(parsed)
        if owner.state is Ownership.UNKNOWN:
            return begun_ms < old_before_ms
        return owner.over_since(now_ms - settings.grace_ms)

    return store.sweep_unfinished(old_before_ms, purpose=Purpose.GC, may_go=may_go)


def _delete_dead_files(
    catalog: Catalog, store: ObjectStore, before_ms: int, batch: int, report: GarbageReport
) -> None:
    while files := catalog.garbage.dead_files(before_ms, batch):
        left = _delete(store, [file.object_name for file in files])
        gone = [file for file in files if file.object_name not in left]
        catalog.garbage.forget([file.file_id for file in gone])
        report.dead_files += len(gone)
        report.dead_bytes += sum(file.size for file in gone)
        report.not_deleted += len(left)
        if left:
            return  # the same files would come first again


def _clear_up_after_owners(
    catalog: Catalog, store: ObjectStore, settings: GarbageSettings, report: GarbageReport
) -> None:
    """Delete what sessions and jobs left that are over, and in the end forget them.

    Each is looked after twice: once the grace has passed, and before it is forgotten, since an attempt that
    was thought dead may have written something in between.
    """
    for kind in OwnerKind:
        while owners := catalog.expiry.inactive_owners(kind, settings.grace_ms, OWNERS_AT_ONCE, unswept=True):
            clean = [owner for owner in owners if _delete_orphans(catalog, store, owner, settings, report)]
            catalog.expiry.mark_swept(clean)
            if len(clean) < len(owners):
                break  # the same would come first again
        over_for_ms = max(settings.owner_keep_ms, settings.grace_ms)
        while owners := catalog.expiry.inactive_owners(kind, over_for_ms, OWNERS_AT_ONCE):
            clean = [owner for owner in owners if _delete_orphans(catalog, store, owner, settings, report)]
            report.forgotten_owners += catalog.expiry.delete_owners(clean)
            if len(clean) < len(owners):
                break


def _delete_orphans(
    catalog: Catalog,
    store: ObjectStore,
    owner: InactiveOwner,
    settings: GarbageSettings,
    report: GarbageReport,
) -> bool:
    """Delete what an owner left that is over; whether all of it is gone."""
    if owner.kind is OwnerKind.SESSION:
        prefix = names.ingestion_prefix(owner.owner_id)
    else:
        prefix = names.compacted_prefix(owner.owner_id)
    before = report.not_deleted
    found: list[ObjectInfo] = []
    for each in _orphans(catalog, store, prefix):
        found.append(each)
        if len(found) == settings.batch:
            _delete_batch_of_orphans(store, found, report)
            found = []
    _delete_batch_of_orphans(store, found, report)
    return report.not_deleted == before


def _orphans(catalog: Catalog, store: ObjectStore, prefix: str) -> Iterator[ObjectInfo]:
    """Objects below the prefix of somebody who is over that are no files, also when asked for again."""
    for file, info in files_beside_objects(catalog, store, prefix, Purpose.GC):
        if file is not None or info is None or names.parse(info.name) is None:
            continue
        if not catalog.garbage.known_files(info.name, limit=1):
            yield info


def _delete_batch_of_orphans(
    store: ObjectStore, orphans: Sequence[ObjectInfo], report: GarbageReport
) -> None:
    if not orphans:
        return
    left = _delete(store, [each.name for each in orphans])
    gone = [each for each in orphans if each.name not in left]
    report.orphans += len(gone)
    report.orphan_bytes += sum(each.size for each in gone)
    report.not_deleted += len(left)


def _delete(store: ObjectStore, doomed: Sequence[str]) -> frozenset[str]:
    """The names whose objects are still there."""
    try:
        store.delete(doomed, purpose=Purpose.GC)
    except ObjectsNotDeletedError as error:
        return frozenset(error.failures)
    return frozenset()
