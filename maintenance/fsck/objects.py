"""Compare the catalog with the store: every live file has its object, every object has a file or an owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maintenance.fsck.report import Difference, DifferenceKind
from maintenance.listing import files_beside_objects
from maintenance.owners import Owners, Ownership
from object_store import names
from object_store.accounting import Purpose

if TYPE_CHECKING:
    from catalog.lifecycle.garbage import CatalogFile
    from catalog.open import Catalog
    from maintenance.fsck.report import Findings
    from maintenance.owners import Owner
    from object_store.interface import ObjectInfo, ObjectStore
    from object_store.names import CompactedName, IngestionName

_MAX_EXTENTS: Final = 100


@dataclass(slots=True)
class ObjectCheck:
    """One pass over files and objects by name.

    A listing and a query never show the same moment. Therefore a suspicious name is looked up again, the file
    after the object: a file is committed after its object was written, and is marked dead before its object
    is deleted.
    """

    catalog: Catalog
    store: ObjectStore
    findings: Findings
    old_before_ms: int

    def run(self) -> None:
        """Compare everything below the roots of Siltstone's names."""
        for root in names.ROOT_PREFIXES:
            self._run_below(root)

    def _run_below(self, root: str) -> None:
        owners = Owners(self.catalog)
        for file, info in files_beside_objects(self.catalog, self.store, root, Purpose.FSCK):
            self.findings.count("files", int(file is not None))
            self.findings.count("objects", int(info is not None))
            if info is None:
                assert file is not None
                self._without_object(file)
            elif file is not None:
                self._with_both(file, info)
            else:
                self._without_file(info, owners)

    def _without_object(self, file: CatalogFile) -> None:
        info = self._object(file.object_name)
        again = self._file(file.object_name)
        if again is None or again.dead_ms is not None:
            return  # deleted; its row is about to be removed
        if info is not None:
            self._with_both(again, info)
            return
        self.findings.add(
            Difference(
                kind=DifferenceKind.MISSING_OBJECT,
                object_name=file.object_name,
                expected=f"an object of {file.size} bytes",
                found=f"no such object{self._records_of(file) if self.findings.has_room else ''}",
                remedy="restore the object from a copy, or delete its records",
            )
        )

    def _records_of(self, file: CatalogFile) -> str:
        """Return a text with the partitions and offsets of a file's records, which may have to be deleted."""
        extents = self.catalog.planning.extents_of_files([file.file_id])
        found = self.catalog.topics.by_ids(sorted({each.topic_id for each in extents[:_MAX_EXTENTS]}))
        topics = {topic.topic_id: topic.name for topic in found}
        shown = [
            f"{topics.get(each.topic_id, each.topic_id)}-{each.partition}: "
            f"{each.base_offset} to {each.last_offset}"
            for each in extents[:_MAX_EXTENTS]
        ]
        more = len(extents) - len(shown)
        return (" with " + ", ".join(shown) if shown else "") + (f", and {more} more" if more else "")

    def _with_both(self, file: CatalogFile, info: ObjectInfo) -> None:
        if file.dead_ms is not None:
            self.findings.wait_for("dead_files", info.size)
        elif file.size != info.size:
            self._sizes_differ(file)

    def _sizes_differ(self, file: CatalogFile) -> None:
        info = self._object(file.object_name)
        again = self._file(file.object_name)
        if info is None or again is None or again.dead_ms is not None or again.size == info.size:
            return
        self.findings.add(
            Difference(
                kind=DifferenceKind.OBJECT_SIZE,
                object_name=file.object_name,
                expected=f"{again.size} bytes",
                found=f"{info.size} bytes",
                remedy="restore the object from a copy, or delete its records",
            )
        )

    def _without_file(self, info: ObjectInfo, owners: Owners) -> None:
        name = names.parse(info.name)
        if name is None:
            self.findings.wait_for("foreign", info.size)
            return
        owner = owners.of(name)
        file = self._file(info.name)
        if file is not None:
            self._with_both(file, info)
        elif owner.state is Ownership.OPEN:
            self.findings.wait_for("unpublished", info.size)
        elif owner.is_unsettled:
            self.findings.wait_for("unsettled", info.size)
        elif owner.state is Ownership.ENDED and not owner.ended_before(self.old_before_ms):
            self.findings.wait_for("orphans", info.size)
        elif self._object(info.name) is not None:
            self._orphan(info, name, owner)

    def _orphan(self, info: ObjectInfo, name: IngestionName | CompactedName, owner: Owner) -> None:
        if owner.state is Ownership.ENDED:
            owner_state = "its owner can no longer commit it"
            remedy = "let garbage collection delete it: agents and `siltstone maintain` do"
        elif isinstance(name, names.IngestionName):  # the catalog was restored, and has lost the session
            owner_state = "the catalog does not know the session in its name"
            remedy = "do not delete it: it may have acknowledged records; run `siltstone fsck --readopt`"
        else:
            owner_state = "the catalog does not know the job in its name"
            remedy = "delete the object by hand once you will restore no other backup of the catalog"
        self.findings.add(
            Difference(
                kind=DifferenceKind.ORPHAN,
                object_name=info.name,
                expected="a file in the catalog",
                found=f"{info.size} bytes without one; {owner_state}",
                remedy=remedy,
            )
        )

    def _object(self, name: str) -> ObjectInfo | None:
        found = self.store.list(name, purpose=Purpose.FSCK)
        return next((info for info in found if info.name == name), None)

    def _file(self, name: str) -> CatalogFile | None:
        found = self.catalog.garbage.known_files(name, limit=1)
        return found[0] if found and found[0].object_name == name else None
