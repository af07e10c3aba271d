"""Deletes what nobody needs any more: first the objects, and only once they are gone, their rows.

The order is what makes it safe, and is the same for both kinds of garbage. A *dead file* was marked in the
transaction that took its last extent; the catalog names it once it has been dead for the grace period and no
open job reads it. When its object is gone already, an earlier round was broken off before it forgot the row:
that conclusion needs the catalog's own store, so a round begins by making sure of it. An *orphan* is an
object without a file: its owner must be over (so that it cannot be committed any more) before the catalog is
asked for the last time whether it has become a file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from bedrock.errors import InvalidInputError
from object_store import names
from object_store.errors import ObjectsNotDeletedError
from object_store.identity import require_tied
from object_store.interface import Purpose
from planner.listing import files_beside_objects
from planner.owners import Owners, Ownership
from planner.retention import expire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bedrock.clock import Clock
    from catalog.open import Catalog
    from object_store.interface import ObjectInfo, ObjectStore

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageSettings:
    """How long things are kept; milliseconds. `docs/planner.md` has the reasons.

    `grace_ms` must exceed how long any reader keeps what it looked up, and the difference between the
    clocks of this machine, the other agents and the store.
    """

    grace_ms: int = 60_000
    session_silence_ms: int = 60_000
    unfinished_upload_ms: int = DAY_MS
    batch: int = 1000

    def __post_init__(self) -> None:
        """Refuse times that cannot be, and batches of nothing."""
        if min(self.grace_ms, self.session_silence_ms, self.unfinished_upload_ms) < 0 or self.batch < 1:
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
    require_tied(store, catalog.home)
    report = GarbageReport()
    expired = expire(catalog)
    report.expired_extents, report.expired_bytes = expired.extents, expired.size
    report.fenced_sessions = len(catalog.sessions.fence_silent(settings.session_silence_ms))
    while removed := catalog.garbage.remove_deleted():
        report.removed_rows += removed
    _delete_dead_files(catalog, store, clock.now_ms() - settings.grace_ms, settings.batch, report)
    for prefix in (names.INGESTION_PREFIX, names.COMPACTION_PREFIX):
        _delete_orphans(catalog, store, prefix, clock.now_ms() - settings.grace_ms, settings.batch, report)
    swept_before_ms = clock.now_ms() - settings.unfinished_upload_ms
    report.swept_uploads = store.sweep_unfinished(swept_before_ms, purpose=Purpose.GC)
    return report


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


def _delete_orphans(
    catalog: Catalog, store: ObjectStore, prefix: str, before_ms: int, batch: int, report: GarbageReport
) -> None:
    found: list[ObjectInfo] = []
    for each in _orphans(catalog, store, prefix, before_ms):
        found.append(each)
        if len(found) == batch:
            _delete_batch_of_orphans(store, found, report)
            found = []
    _delete_batch_of_orphans(store, found, report)


def _orphans(catalog: Catalog, store: ObjectStore, prefix: str, before_ms: int) -> Iterator[ObjectInfo]:
    """Objects that nobody has and nobody can commit; the questions are asked in this order."""
    owners = Owners(catalog)
    for file, info in files_beside_objects(catalog, store, prefix, Purpose.GC):
        if file is not None or info is None or info.modified_ms > before_ms:
            continue
        name = names.parse(info.name)
        if name is None or owners.of(name) is not Ownership.OVER:
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
