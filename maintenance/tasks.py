"""The maintenance tasks and their intervals.

Each is independent of the others and of Spark, and harmless if several processes run it at once.

| task | what it does | needs the store |
|---|---|---|
| `silence` | fences silent sessions, releases the jobs of silent attempts | no |
| `retention` | removes expired extents | no |
| `topics` | removes the rows of deleted topics | no |
| `dead_files` | deletes unreferenced objects | yes |
| `orphans` | deletes what ended sessions and jobs left, then their rows | yes |
| `rows` | deletes idle producers, transactional ids, and old results of commits | no |
| `transactions` | aborts transactions that have timed out | no |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maintenance import garbage_collection
from maintenance.retention import remove_expired
from maintenance.runner import MaintenanceTask
from maintenance.silence import fence_silent, release_silent_jobs
from maintenance.transaction_timeouts import abort_timed_out
from object_store.binding import require_bound

if TYPE_CHECKING:
    from catalog.open import Catalog
    from maintenance.report import MaintenanceReport, Progress
    from maintenance.settings import MaintenanceSettings
    from object_store.interface import ObjectStore

# An observation of the catalog at least every MAX_GAP_MS lets silence count.
_SILENCE_SECONDS: Final = 3.0
CATALOG_SECONDS: Final = 10.0
DEAD_FILES_SECONDS: Final = 10.0
ORPHANS_SECONDS: Final = 60.0
"""Each round lists unfinished uploads, which costs as much as five writes."""


def maintenance_tasks(
    catalog: Catalog, store: ObjectStore, settings: MaintenanceSettings
) -> list[MaintenanceTask]:
    """Return the tasks. Those that delete objects verify first that the store is the catalog's."""

    def silence(report: MaintenanceReport, progress: Progress) -> None:
        fence_silent(catalog, settings, report)
        progress()
        release_silent_jobs(catalog, settings, report)

    def retention(report: MaintenanceReport, progress: Progress) -> None:
        remove_expired(catalog, report, progress)

    def topics(report: MaintenanceReport, progress: Progress) -> None:
        garbage_collection.remove_deleted_topics(catalog, settings, report, progress)

    def dead_files(report: MaintenanceReport, progress: Progress) -> None:
        require_bound(store, catalog.store_binding)
        garbage_collection.collect_dead_files(catalog, store, catalog.clock, settings, report, progress)

    def orphans(report: MaintenanceReport, progress: Progress) -> None:
        require_bound(store, catalog.store_binding)
        garbage_collection.collect_orphans(catalog, store, catalog.clock, settings, report, progress)

    def rows(report: MaintenanceReport, _progress: Progress) -> None:
        garbage_collection.expire_rows(catalog, settings, report)

    def transactions(report: MaintenanceReport, progress: Progress) -> None:
        abort_timed_out(catalog, report, progress)
        ongoing = catalog.transaction_lookups.count_ongoing()
        report.gauges["ongoing_transactions"] = ongoing.transactions
        report.gauges["oldest_transaction_seconds"] = ongoing.oldest_ms / 1000

    return [
        MaintenanceTask(name="silence", interval_seconds=_SILENCE_SECONDS, run=silence),
        MaintenanceTask(name="retention", interval_seconds=CATALOG_SECONDS, run=retention),
        MaintenanceTask(name="topics", interval_seconds=CATALOG_SECONDS, run=topics),
        MaintenanceTask(name="dead_files", interval_seconds=DEAD_FILES_SECONDS, run=dead_files),
        MaintenanceTask(name="orphans", interval_seconds=ORPHANS_SECONDS, run=orphans),
        MaintenanceTask(name="rows", interval_seconds=settings.producer_check_ms / 1000, run=rows),
        MaintenanceTask(name="transactions", interval_seconds=CATALOG_SECONDS, run=transactions),
    ]
