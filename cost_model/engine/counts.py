"""What a simulation counts, in units of the real system, and what it looks like at one moment."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True, kw_only=True)
class Counts:
    """Requests, bytes and jobs since the beginning.

    An upload in parts is a create, its parts and a completion. `ingested_bytes` are what agents wrote,
    `produced_bytes` what producers sent before compression; `fetch_bytes` were read of objects for consumers.
    `planned_extents` are those that plans looked at because of jobs that came of it.
    """

    produced_bytes: float = 0.0
    ingested_bytes: float = 0.0
    ingestion_files: float = 0.0
    ingestion_extents: float = 0.0
    put_ingest: float = 0.0
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
    planned_extents: float = 0.0

    def copy(self) -> Counts:
        """What it is now."""
        return Counts(**{each.name: getattr(self, each.name) for each in fields(self)})

    def since(self, before: Counts) -> Counts:
        """What was added to `before`."""
        return Counts(
            **{each.name: getattr(self, each.name) - getattr(before, each.name) for each in fields(self)}
        )

    def plus(self, other: Counts) -> Counts:
        """Both together."""
        return Counts(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )

    @property
    def jobs(self) -> float:
        """Of all kinds."""
        return self.ingestion_jobs + self.cleaning_jobs + self.merging_jobs + self.clustering_jobs

    def upload(self, size: float, objects: float, part_bytes: int) -> None:
        """Count `objects` uploads of `size` bytes together, each in parts of `part_bytes` and a last one."""
        each = size / objects
        self.multipart_create += objects
        self.multipart_complete += objects
        self.multipart_part += objects * max(1, -(-each // part_bytes))


@dataclass(slots=True, kw_only=True)
class Sample:
    """One moment: what is stored, what the catalog knows of it, and what waits.

    `ideal_bytes` are what would be left if every compacted partition were clean; `dirty_bytes` of
    `compacted_bytes` are in compacted topics and not clean. `open_bytes` are what jobs still have to move.
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
    waiting_bytes: float = 0.0
    open_bytes: float = 0.0

    def plus(self, other: Sample) -> Sample:
        """Two parts of one system at the same moment."""
        values = {
            each.name: getattr(self, each.name) + getattr(other, each.name)
            for each in fields(self)
            if each.name != "day"
        }
        return Sample(day=self.day, **values)

    @property
    def dirty_ratio(self) -> float:
        """The dirty part of all compacted topics."""
        return self.dirty_bytes / self.compacted_topic_bytes if self.compacted_topic_bytes else 0.0

    @property
    def read_amplification(self) -> float:
        """What a reader of everything reads, for each byte that it would have to."""
        return self.live_bytes / self.ideal_bytes if self.ideal_bytes else 1.0

    @property
    def rows_per_gib(self) -> float:
        """Rows of the catalog for each GiB that is alive."""
        return self.rows / (self.live_bytes / 2**30) if self.live_bytes else 0.0
