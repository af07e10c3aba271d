"""Counts of a simulation, and samples of its state, in units of the real system."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

UPLOAD_PART_BYTES: Final = 8 * 2**20


@dataclass(slots=True, kw_only=True)
class Counts:
    """Requests, bytes and jobs since the start.

    A job writes an object of at most one part with a PUT (`put_compaction`). A multipart upload is one
    create, its parts and one completion. `ingested_bytes` are written by agents, `read_bytes` and
    `written_bytes` by jobs. `fetch_bytes` are read from objects for consumers.
    """

    ingested_bytes: float = 0.0
    ingestion_extents: float = 0.0
    put_ingest: float = 0.0
    put_compaction: float = 0.0
    multipart_create: float = 0.0
    multipart_part: float = 0.0
    multipart_complete: float = 0.0
    get_compaction: float = 0.0
    get_fetch: float = 0.0
    get_gc: float = 0.0
    list_gc: float = 0.0
    delete_calls: float = 0.0
    deleted_objects: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    cleaned_bytes: float = 0.0
    merged_bytes: float = 0.0
    fetch_bytes: float = 0.0
    ingestion_jobs: float = 0.0
    cleaning_jobs: float = 0.0
    merging_jobs: float = 0.0
    clustering_jobs: float = 0.0

    def copy(self) -> Counts:
        """Return a copy."""
        return Counts(**{each.name: getattr(self, each.name) for each in fields(self)})

    def since(self, before: Counts) -> Counts:
        """Return the difference to earlier counts."""
        return Counts(
            **{each.name: getattr(self, each.name) - getattr(before, each.name) for each in fields(self)}
        )

    def plus(self, other: Counts) -> Counts:
        """Return the sum of both."""
        return Counts(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )

    @property
    def jobs(self) -> float:
        """Jobs of all kinds."""
        return self.ingestion_jobs + self.cleaning_jobs + self.merging_jobs + self.clustering_jobs

    @property
    def written_objects(self) -> float:
        """Objects that jobs write."""
        return self.put_compaction + self.multipart_create

    @property
    def upload_requests(self) -> float:
        """Requests with which jobs write objects."""
        return self.put_compaction + self.multipart_create + self.multipart_part + self.multipart_complete

    def upload(self, size: float, objects: float) -> None:
        """Count the requests that write `objects` equal objects with `size` bytes in total."""
        each = size / objects
        if each <= UPLOAD_PART_BYTES:
            self.put_compaction += objects
            return
        self.multipart_create += objects
        self.multipart_complete += objects
        self.multipart_part += objects * max(1, -(-each // UPLOAD_PART_BYTES))


@dataclass(slots=True, kw_only=True)
class Sample:
    """State at one moment: stored data, rows of the catalog and backlog.

    `ideal_bytes` would be live if every compacted partition were clean. `dirty_bytes` are the part of
    `compacted_topic_bytes` that is not clean. `open_bytes` are bytes that planned jobs still have to move.
    """

    day: float
    live_bytes: float = 0.0
    stored_bytes: float = 0.0
    ideal_bytes: float = 0.0
    dirty_bytes: float = 0.0
    compacted_topic_bytes: float = 0.0
    objects: float = 0.0
    extents: float = 0.0
    rows: float = 0.0
    waiting_files: float = 0.0
    open_bytes: float = 0.0

    def plus(self, other: Sample) -> Sample:
        """Return the sum of two parts of one system at the same moment."""
        values = {
            each.name: getattr(self, each.name) + getattr(other, each.name)
            for each in fields(self)
            if each.name != "day"
        }
        return Sample(day=self.day, **values)

    @property
    def dirty_ratio(self) -> float:
        """Dirty share of all compacted topics."""
        return self.dirty_bytes / self.compacted_topic_bytes if self.compacted_topic_bytes else 0.0

    @property
    def read_amplification(self) -> float:
        """Live bytes, per byte that would be live if every partition were clean."""
        return self.live_bytes / self.ideal_bytes if self.ideal_bytes else 1.0

    @property
    def rows_per_gib(self) -> float:
        """Catalog rows per GiB of live data."""
        return self.rows / (self.live_bytes / 2**30) if self.live_bytes else 0.0
