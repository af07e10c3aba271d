"""Garbage collection of files whose sections are in several shards.

A file is garbage when its part is dead in every shard that its name lists. Dead is final in each shard, so
the confirmations of the shards may come at different times. A part that was never committed is dead once its
shard has voided it: by order of its agent, or after its session has closed there.

Objects are deleted before rows. Each step may be repeated, by several processes at once. A shard that is away
confirms nothing, so the objects that it shares are kept.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from catalog.errors import CatalogUnavailableError
from catalog.lifecycle.expiry import OwnerKind
from catalog.model import FileKind
from maintenance.listing import files_beside_objects
from maintenance.report import MaintenanceReport
from object_store import names
from object_store.accounting import Purpose
from object_store.errors import ObjectNotFoundError, ObjectsNotDeletedError
from prototypes.sharded_catalog.names import parse

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from uuid import UUID

    from catalog.lifecycle.expiry import InactiveOwner
    from catalog.lifecycle.garbage import CatalogFile
    from object_store.interface import ObjectStore
    from prototypes.sharded_catalog.shards import Shard, Shards

_log = structlog.get_logger(__name__)


class ShardedGarbage:
    """Garbage of all shards in one object store. All times are those of the shard that is asked."""

    def __init__(
        self, shards: Shards, store: ObjectStore, *, grace_ms: int, owner_keep_ms: int, batch: int = 500
    ) -> None:
        self._shards = shards
        self._store = store
        self._grace_ms = grace_ms
        self._owner_keep_ms = max(owner_keep_ms, grace_ms)
        self._batch = batch

    def collect(self) -> MaintenanceReport:
        """Run one round in each shard that responds."""
        report = MaintenanceReport()
        for shard in self._shards:
            try:
                shard.catalog.expiry.expire_commit_results()
                self._collect_dead(shard, report)
                self._sweep(shard, report)
            except CatalogUnavailableError as error:
                _log.warning("a shard is away", shard=shard.number, reason=str(error))
        return report

    def _collect_dead(self, shard: Shard, report: MaintenanceReport) -> None:
        """Delete the dead files of a shard that are dead in all their other shards, too."""
        garbage = shard.catalog.garbage
        before_ms = self._before_ms(shard)
        files = garbage.dead_files(before_ms, self._batch)
        while files:
            gone = self._delete_objects(shard, files)
            self._delete_rows(shard, gone)
            left = [file.file_id for file in files if file not in gone]
            if left:
                garbage.postpone(left)
            report.dead_files += len(gone)
            report.dead_bytes += sum(file.size for file in gone)
            report.not_deleted += len(left)
            files = garbage.dead_files(before_ms, self._batch, after=files[-1])

    def _delete_objects(self, shard: Shard, files: list[CatalogFile]) -> list[CatalogFile]:
        """Delete the objects of the files that all their shards confirm; return those without object."""
        dead = {file.file_id: file for file in files if shard.number in _shards_of(file, shard)}
        missing: dict[UUID, CatalogFile] = {}
        for other in self._shards:
            asked = {key: file for key, file in dead.items() if other.number in _shards_of(file, shard)}
            refused = asked.keys() - self._confirm_dead(other, asked)
            missing |= {key: asked[key] for key in self._unknown(other, refused)}
            for key in refused:
                del dead[key]
        known = range(len(self._shards))
        deletable = [file for file in dead.values() if _shards_of(file, shard).issubset(known)]
        remaining = self._delete([file.object_name for file in deletable])
        gone = [file for file in deletable if file.object_name not in remaining]
        # An object goes before its rows. Without object, a row that is left of it has no use.
        return gone + [file for file in missing.values() if not self._exists(file.object_name)]

    def _confirm_dead(self, shard: Shard, file_ids: Collection[UUID]) -> frozenset[UUID]:
        """Return those files whose parts in a shard are dead for ever; none if the shard is away."""
        if not file_ids:
            return frozenset()
        with suppress(CatalogUnavailableError):
            return shard.catalog.deletions.confirm_dead_files(list(file_ids), self._before_ms(shard))
        return frozenset()

    @staticmethod
    def _unknown(shard: Shard, file_ids: Collection[UUID]) -> frozenset[UUID]:
        """Return the files of which some shard has neither a row nor the result of a recent commit."""
        if not file_ids:
            return frozenset()
        with suppress(CatalogUnavailableError):
            return shard.catalog.lost_commits.unknown(list(file_ids))
        return frozenset()

    def _delete_rows(self, shard: Shard, files: Iterable[CatalogFile]) -> None:
        """Delete the dead rows of files without object, in all shards that respond."""
        by_shard: dict[int, list[UUID]] = {}
        for file in files:
            for number in _shards_of(file, shard):
                by_shard.setdefault(number, []).append(file.file_id)
        for number, file_ids in by_shard.items():
            with suppress(CatalogUnavailableError):
                self._shards[number].catalog.garbage.delete_rows(file_ids)

    def _sweep(self, shard: Shard, report: MaintenanceReport) -> None:
        """Void the parts in a shard that its closed sessions have left; later delete these sessions.

        Each session is swept twice, as in `maintenance.garbage_collection`.
        """
        expiry = shard.catalog.expiry
        for ended_for_ms, unswept in ((self._grace_ms, True), (self._owner_keep_ms, False)):
            list_owners = expiry.inactive_owners
            owners = list_owners(OwnerKind.SESSION, ended_for_ms, self._batch, unswept=unswept)
            while owners:
                clean = [owner for owner in owners if self._void_missing(shard, owner, report)]
                if unswept:
                    expiry.mark_swept(clean)
                else:
                    report.removed_owners += expiry.delete_owners(clean)
                owners = list_owners(
                    OwnerKind.SESSION, ended_for_ms, self._batch, unswept=unswept, after=owners[-1]
                )

    def _void_missing(self, shard: Shard, session: InactiveOwner, report: MaintenanceReport) -> bool:
        """Void the parts of a session's objects without a row in the shard; return True if none is left."""
        is_clean = True
        prefix = names.ingestion_prefix(session.owner_id)
        for file, info in files_beside_objects(shard.catalog, self._store, prefix, Purpose.GC):
            parsed = None if file is not None or info is None else parse(info.name)
            if parsed is None or info is None or shard.number not in parsed.shards:
                continue
            is_void = shard.void(
                parsed.file_id, info.name, info.size, session.owner_id, self._before_ms(shard)
            )
            report.orphans += is_void
            is_clean = is_clean and is_void
        return is_clean

    def _before_ms(self, shard: Shard) -> int:
        return shard.catalog.clock.now_ms() - self._grace_ms

    def _delete(self, object_names: list[str]) -> frozenset[str]:
        """Delete objects; return the names of those that still exist."""
        try:
            self._store.delete(object_names, purpose=Purpose.GC)
        except ObjectsNotDeletedError as error:
            return frozenset(error.failures)
        return frozenset()

    def _exists(self, object_name: str) -> bool:
        try:
            self._store.read_tail(object_name, 1, purpose=Purpose.GC)
        except ObjectNotFoundError:
            return False
        return True


def _shards_of(file: CatalogFile, shard: Shard) -> frozenset[int]:
    """Return the shards that may have a part of a file in `shard`; none if they are unknown."""
    if file.kind is FileKind.COMPACTED:
        return frozenset({shard.number})  # of a job, and each job belongs to one shard
    parsed = parse(file.object_name)
    return frozenset() if parsed is None else parsed.shards
