"""A log with a job that runs on Spark while its tasks are struck, and what must come of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from catalog.model import FileKind, PartitionId
from maintenance.garbage_collection import GarbageSettings, collect_garbage
from object_store.binding import verify_binding
from object_store.names import IDENTITY_NAME
from tests.spark_jobs.model_log import batch

if TYPE_CHECKING:
    from core.clock import ManualClock
    from object_format.record_batch.records import Record
    from object_store.open import StoreConfig
    from spark_jobs.report import CompactionReport
    from tests.spark_jobs.published_log import PublishedLog
    from tests.spark_jobs.task.struck_kernels import Strikes

FILES = 8
PARTITIONS = 2
RECORDS = 60
TABLE_BYTES = 2048
"""Enough for the keys of a partition, and not for its records: the exact plan makes several buckets."""
SHARES = 8
TASKS = {f"{stage}-{number}" for stage in ("cut", "judge", "write") for number in range(SHARES)}
"""Those of the exact plan; as many judges as shares. Two run at a time, in this order."""


class StruckLog:
    """A log with one job, whose tasks are struck."""

    def __init__(self, strikes: Strikes, published: PublishedLog, store: StoreConfig) -> None:
        self.strikes = strikes
        self._published = published
        self._catalog = published.catalog
        self._store = store
        topic = published.create_topic("struck", "compact", PARTITIONS)
        self._partitions = [PartitionId(topic.topic_id, number) for number in range(PARTITIONS)]
        for file in range(FILES):
            published.ingest({each: [batch(*pairs_of(file, each.partition))] for each in self._partitions})
        verify_binding(published.store, self._catalog.store_binding, published.ids)
        published.submit(topic, range(PARTITIONS), table_bytes=TABLE_BYTES)
        self._expected = {each: newest(published.read(each)) for each in self._partitions}

    def check(self, report: CompactionReport) -> None:
        """The job was published, exactly, as it was read by two GETs a file."""
        assert report.failures == []
        assert self.strikes.are_spent()
        assert (report.input_files, report.get_requests, report.resumes) == (FILES, 2 * FILES, 0)
        assert report.records_in == FILES * PARTITIONS * RECORDS
        assert report.records_out == sum(map(len, self._expected.values())) == report.keys
        assert report.keys_outside_table == 0
        self._check_log()

    def _check_log(self) -> None:
        for partition, expected in self._expected.items():
            assert self._published.read(partition) == expected
            assert all(each.unique_keys for each in self._published.extents(partition, FileKind.COMPACTED))

    def collect(self, clock: ManualClock) -> int:
        """Garbage goes, and nothing is left but what readers need; returns how many objects nobody knew."""
        clock.advance(61)
        settings = GarbageSettings(unfinished_upload_ms=0)
        collected = collect_garbage(self._catalog, self._published.store, clock, settings)
        live = {
            each.object_name for partition in self._partitions for each in self._published.extents(partition)
        }
        root = Path(self._store.url.removeprefix("file://"))
        files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        assert files == live | {IDENTITY_NAME}
        self._check_log()
        return collected.orphans


def pairs_of(file: int, partition: int) -> list[tuple[bytes, bytes | None]]:
    """Records of one batch: keys that others have too, and some deletes."""
    return [
        (b"key-%d" % ((17 * file + (3 + partition) * each) % 97), None if each % 7 == file else b"%d" % file)
        for each in range(RECORDS)
    ]


def newest(records: list[Record]) -> list[Record]:
    """What a dictionary keeps."""
    last = {record.key: record.offset for record in records}
    return [record for record in records if last[record.key] == record.offset]
