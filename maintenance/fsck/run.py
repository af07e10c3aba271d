"""The three comparisons in their order: the catalog, the catalog against the store, the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from catalog.invariants import file_counts_agree
from maintenance.fsck.deep import FileCheck
from maintenance.fsck.objects import ObjectCheck
from maintenance.fsck.partitions import check_partitions
from maintenance.fsck.report import Difference, DifferenceKind, Findings
from maintenance.listing import known_files
from object_store import names
from object_store.binding import require_tied
from object_store.errors import LostIdentityError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from catalog.lifecycle.garbage import CatalogFile
    from catalog.model import Extent
    from catalog.open import Catalog
    from core.clock import Clock
    from maintenance.fsck.report import FsckReport
    from object_store.interface import ObjectStore

FILES_AT_ONCE: Final = 50


def fsck(
    catalog: Catalog,
    store: ObjectStore,
    clock: Clock,
    *,
    deep: bool = False,
    repair: bool = False,
    grace_ms: int = 60_000,
    max_differences: int = 1000,
) -> FsckReport:
    """Compare everything, and change nothing without `repair`; may run beside agents and jobs.

    With it, what follows for certain from the extents is set by them: sums of partitions, counts and death of
    files, claims of jobs that are over. Nothing is repaired when extents themselves are in doubt.

    With `deep`, every live file is read once from its first byte to its last. Objects younger than
    `grace_ms` are not yet called orphans. The first `max_differences` differences are kept, all are counted.
    Raises ForeignStoreError for another catalog's store: every object would be missing there.
    """
    findings = Findings(max_differences)
    _check_identity(catalog, store, findings)
    repair = repair and _extents_are_sound(catalog)
    check_partitions(catalog, findings, repair=repair)
    _check_files(catalog, findings, repair=repair)
    _check_quarantine(catalog, findings)
    ObjectCheck(catalog, store, findings, clock.now_ms() - grace_ms).run()
    if deep:
        topics = {topic.topic_id: topic.name for topic in catalog.topics.list()}
        check = FileCheck(store, findings, topics)
        for files in _live_files(catalog):
            extents = _extents_by_file(catalog, files)
            for file in files:
                check.check(file, extents[file.file_id])
    return findings.report(deep=deep)


def _check_identity(catalog: Catalog, store: ObjectStore, findings: Findings) -> None:
    """A store that has lost its marker is the first difference: it explains those that follow."""
    try:
        require_tied(store, catalog.store_binding)
    except LostIdentityError as error:
        findings.add(
            Difference(
                kind=DifferenceKind.STORE_IDENTITY,
                object_name=names.IDENTITY_NAME,
                expected="the marker that says which object store this is",
                found=error.message,
                remedy=error.remedy or "restore the store from a copy",
            )
        )


def _extents_are_sound(catalog: Catalog) -> bool:
    """Whether every partition's extents cover its log: a file that has lost some would pass for dead."""
    survey = Findings(max_differences=0)
    check_partitions(catalog, survey)
    return survey.kinds <= {DifferenceKind.SUMS} and "partitions_too_busy" not in survey.checked


def _check_files(catalog: Catalog, findings: Findings, *, repair: bool) -> None:
    """What is kept of each file, against its extents."""
    for tally in catalog.repair.wrong_file_counts():
        if repair:
            catalog.repair.recount_file(tally.file_id)
        for violation in file_counts_agree(tally):
            findings.add(
                Difference(
                    kind=DifferenceKind.FILE_COUNTS,
                    object_name=tally.object_name,
                    expected="a file's counts to be those of its extents, claimed by open jobs alone",
                    found=violation.found,
                    remedy="siltstone fsck --repair sets them right",
                    repaired=repair,
                )
            )


def _check_quarantine(catalog: Catalog, findings: Findings) -> None:
    """What compaction has given up is amiss, even where every byte turns out to be sound."""
    for each in catalog.quarantine.list(quarantined=True):
        findings.add(
            Difference(
                kind=DifferenceKind.QUARANTINED,
                object_name=each.object_name,
                expected="a file that compaction gets through",
                found=f"one that it has given up after {each.failures} failures: {each.reason}",
                remedy="see what `siltstone fsck --deep` says of it, then `siltstone quarantine --retry`",
            )
        )


def _live_files(catalog: Catalog) -> Iterator[list[CatalogFile]]:
    page: list[CatalogFile] = []
    for file in known_files(catalog, names.ROOT_PREFIX):
        if file.dead_ms is None:
            page.append(file)
        if len(page) == FILES_AT_ONCE:
            yield page
            page = []
    if page:
        yield page


def _extents_by_file(catalog: Catalog, files: Sequence[CatalogFile]) -> dict[UUID, list[Extent]]:
    """The live extents of some files; costs as much as it answers."""
    found: dict[UUID, list[Extent]] = {file.file_id: [] for file in files}
    for extent in catalog.planning.extents_of_files(list(found)):
        found[extent.file_id].append(extent)
    return found
