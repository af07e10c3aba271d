"""The comparisons of fsck, in order: the catalog, the catalog with the store, the bytes."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from catalog.invariants import file_counts_agree
from maintenance.fsck.deep import FileCheck
from maintenance.fsck.objects import ObjectCheck
from maintenance.fsck.partitions import check_partitions, check_transactions
from maintenance.fsck.producers import ProducerCheck
from maintenance.fsck.report import Difference, DifferenceKind, Findings
from maintenance.listing import known_files
from object_store import names
from object_store.binding import require_bound
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
    """Compare everything; change nothing without `repair`. May run next to agents and jobs.

    `repair` derives from the extents what follows with certainty: totals of partitions, counts and death of
    files, claims of ended jobs. With `deep`, it also clears the flag of unique keys where a key occurs twice.
    If the extents themselves are in doubt, nothing is repaired.

    `deep` reads every live file from its first byte to its last, and extents with unique keys again. It also
    compares batches with the states of their producers and transactions. Objects
    younger than `grace_ms` are not reported as orphans. The first `max_differences` differences are kept, all
    are counted. Raise ForeignStoreError for another catalog's store, in which every object would be missing.
    """
    findings = Findings(max_differences)
    _check_identity(catalog, store, findings)
    repair = repair and _extents_are_sound(catalog)
    check_partitions(catalog, findings, repair=repair)
    check_transactions(catalog, findings)
    _check_files(catalog, findings, repair=repair)
    _check_quarantine(catalog, findings)
    ObjectCheck(catalog, store, findings, clock.now_ms() - grace_ms).run()
    if deep:
        topics = {topic.topic_id: topic.name for topic in catalog.topics.list()}
        clear = catalog.repair.clear_unique_keys if repair else None
        producers = ProducerCheck(catalog.logged_batches.contradictions, findings, topics)
        check = FileCheck(store, findings, topics, producers, clear)
        for files in _live_files(catalog):
            extents = _extents_by_file(catalog, files)
            for file in files:
                check.check(file, extents[file.file_id])
    return findings.report(deep=deep)


def _check_identity(catalog: Catalog, store: ObjectStore, findings: Findings) -> None:
    """Report a store that lost its marker as the first difference, because it explains the others."""
    try:
        require_bound(store, catalog.store_binding)
    except LostIdentityError as error:
        findings.add(
            Difference(
                kind=DifferenceKind.STORE_IDENTITY,
                object_name=names.IDENTITY_NAME,
                expected="the marker that identifies the object store",
                found=error.message,
                remedy=error.remedy or "restore the store from a copy",
            )
        )


def _extents_are_sound(catalog: Catalog) -> bool:
    """Return True if every partition's extents cover its log; else a file in use could look dead."""
    findings = Findings(max_differences=0)
    check_partitions(catalog, findings)
    return findings.kinds <= {DifferenceKind.SUMS} and "partitions_too_busy" not in findings.checked


def _check_files(catalog: Catalog, findings: Findings, *, repair: bool) -> None:
    """Compare the counts of each file with its extents."""
    for tally in catalog.repair.wrong_file_counts():
        if repair:
            catalog.repair.recount_file(tally.file_id)
        for violation in file_counts_agree(tally):
            findings.add(
                Difference(
                    kind=DifferenceKind.FILE_COUNTS,
                    object_name=tally.object_name,
                    expected="counts of the file equal to those of its extents, and claims of open jobs only",
                    found=violation.found,
                    remedy="siltstone fsck --repair corrects them",
                    repaired=repair,
                )
            )


def _check_quarantine(catalog: Catalog, findings: Findings) -> None:
    """Report quarantined files, even if every byte turns out to be sound."""
    for each in catalog.quarantine.list(quarantined=True):
        findings.add(
            Difference(
                kind=DifferenceKind.QUARANTINED,
                object_name=each.object_name,
                expected="a file that compaction can read",
                found=f"a file quarantined after {each.failures} failures: {each.reason}",
                remedy="run `siltstone fsck --deep`, then `siltstone quarantine --retry`",
            )
        )


def _live_files(catalog: Catalog) -> Iterator[list[CatalogFile]]:
    page: list[CatalogFile] = []
    for file in chain.from_iterable(known_files(catalog, root) for root in names.ROOT_PREFIXES):
        if file.dead_ms is None:
            page.append(file)
        if len(page) == FILES_AT_ONCE:
            yield page
            page = []
    if page:
        yield page


def _extents_by_file(catalog: Catalog, files: Sequence[CatalogFile]) -> dict[UUID, list[Extent]]:
    """Return the live extents of some files; the cost is proportional to the result."""
    found: dict[UUID, list[Extent]] = {file.file_id: [] for file in files}
    for extent in catalog.planning.extents_of_files(list(found)):
        found[extent.file_id].append(extent)
    return found
