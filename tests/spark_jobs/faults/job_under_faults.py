"""A log with one job that runs on Spark while faults happen, and the checks of its result."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from catalog.model import FileKind, PartitionId
from maintenance.garbage_collection import collect_garbage
from maintenance.settings import MaintenanceSettings
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from object_store.names import IDENTITY_NAME
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from core.clock import ManualClock
    from object_format.record_batch.records import Record
    from object_store.open import StoreConfig
    from spark_jobs.report import CompactionReport
    from tests.spark_jobs.catalog_log import CatalogLog
    from tests.spark_jobs.faults.planned_faults import PlannedFaults

FILES = 8
PARTITIONS = 2
RECORDS = 60
TABLE_BYTES = 2048
"""Enough for the keys of a partition, but not for its records: the shuffle plan makes several buckets."""
SHARES = 8
_LOOKS: Final = 100
TASKS = {f"{stage}-{number}" for stage in ("cut", "judge", "write") for number in range(SHARES)}
"""The tasks of the shuffle plan, with as many judges as shares. Two run at a time, in this order."""


class JobUnderFaults:
    """A log with one job, and the faults that are planned for its tasks."""

    def __init__(self, faults: PlannedFaults, catalog_log: CatalogLog, store: StoreConfig) -> None:
        self.faults = faults
        self._catalog_log = catalog_log
        self._catalog = catalog_log.catalog
        self._store = store
        topic = catalog_log.create_topic("faulty", "compact", PARTITIONS)
        self._partitions = [PartitionId(topic.topic_id, number) for number in range(PARTITIONS)]
        for file in range(FILES):
            catalog_log.ingest({each: [batch(*pairs_of(file, each.partition))] for each in self._partitions})
        verify_binding(catalog_log.store, self._catalog.store_binding, catalog_log.ids)
        catalog_log.submit(topic, range(PARTITIONS), table_bytes=TABLE_BYTES)
        self._expected = {each: newest(catalog_log.read(each)) for each in self._partitions}

    def check(self, report: CompactionReport) -> None:
        """Verify that every planned fault happened and that the job's exact result was published."""
        assert report.failures == []
        assert self.faults.all_happened()
        assert (report.input_files, report.get_requests, report.resumes) == (FILES, 2 * FILES, 0)
        assert report.records_in == FILES * PARTITIONS * RECORDS
        assert report.records_out == sum(map(len, self._expected.values())) == report.keys
        assert report.keys_outside_table == 0
        self._check_log()

    def _check_log(self) -> None:
        for partition, expected in self._expected.items():
            assert self._catalog_log.read(partition) == expected
            assert all(each.unique_keys for each in self._catalog_log.extents(partition, FileKind.COMPACTED))

    def collect(self, clock: ManualClock) -> int:
        """Collect garbage and verify that only live objects are left; return the number of orphans.

        The Python worker of a task may outlive its executor for a moment, and begin another upload. The
        times of unfinished files are those of the machine, which are later than those of `clock`.
        """
        clock.advance(61)
        settings = MaintenanceSettings(unfinished_upload_ms=0)
        orphans, left = 0, {""}
        for _ in range(_LOOKS):
            orphans += collect_garbage(self._catalog, self._catalog_log.store, clock, settings).orphans
            self._catalog_log.store.sweep_unfinished(time.time_ns() // 1_000_000, purpose=Purpose.GC)
            left = self._unexpected_files()
            if not left:
                break
            time.sleep(0.1)
        assert not left, left
        self._check_log()
        return orphans

    def _unexpected_files(self) -> set[str]:
        """Return the files of the store that are not live, and the live ones that it lacks."""
        live = {
            each.object_name
            for partition in self._partitions
            for each in self._catalog_log.extents(partition)
        }
        root = Path(self._store.url.removeprefix("file://"))
        files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        return files ^ (live | {IDENTITY_NAME})


def pairs_of(file: int, partition: int) -> list[tuple[bytes, bytes | None]]:
    """Return the records of one batch: keys that other batches have, too, and some tombstones."""
    return [
        (b"key-%d" % ((17 * file + (3 + partition) * each) % 97), None if each % 7 == file else b"%d" % file)
        for each in range(RECORDS)
    ]


def newest(records: list[Record]) -> list[Record]:
    """Return the newest record of each key."""
    last = {record.key: record.offset for record in records}
    return [record for record in records if last[record.key] == record.offset]
