"""What a cell looks like at one moment, in units of the real system, and what follows from steady rates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from cost_model.engine.counts import Counts, Sample
from cost_model.engine.scaled_model import SECTION_BYTES
from cost_model.engine.steady_state import flush_seconds, presence, stored_bytes_per_second
from cost_model.workload.workload import MEGABYTE

if TYPE_CHECKING:
    from cost_model.engine.scaled_model import CellLog, Part
    from cost_model.engine.steady_state import Front
    from cost_model.workload.workload import Workload

COALESCED_BYTES: Final = 64 * 1024
"""Agents read ranges of one object together that are no further apart (`agent.settings`)."""

LISTS_OF_A_JOB: Final = 2
"""Garbage collection looks below a job's prefix once it is over, and again before it forgets it."""

DELETED_AT_ONCE: Final = 1000
DAY_SECONDS: Final = 86_400
ANSWERS_KEPT_SECONDS: Final = 3_600


def sample_of(log: CellLog, day: float) -> Sample:
    """What the cell stands for, but for what comes and goes within a round."""
    thinning = log.scale.thinning
    sample = Sample(day=day)
    for part in log.parts.values():
        live = sum(extent.length for extent in part.extents)
        sample.extents += part.weight * part.row_count
        sample.live_bytes += thinning * live
        if part.rules.compacted:
            sample.compacted_topic_bytes += thinning * (live + part.standing_dirty)
            sample.dirty_bytes += thinning * (part.dirty_bytes() + part.standing_dirty)
            sample.ideal_bytes += thinning * min(live, _ideal(part))
        else:
            sample.ideal_bytes += thinning * live
    for file in (*log.files.values(), *log.ingestion.values()):
        sample.stored_bytes += thinning * file.view.size
        sample.objects += file.objects
    return sample


def _ideal(part: Part) -> int:
    """What one record a key would take, tombstones aside."""
    return part.length_of(part.records.distinct(part.log_end - part.log_start))


def add_rows(sample: Sample, workload: Workload, files_per_second: float, jobs_per_second: float) -> None:
    """Sum up the catalog's rows: extents, files, partitions, producers, sessions, jobs of a day, answers."""
    topics = sum(each.topics for each in workload.topics)
    agents = workload.agents_of_partition
    sample.rows = (
        sample.extents
        + sample.objects
        + topics
        + workload.partition_count * (1 + agents)  # one idempotent producer for each agent and partition
        + workload.agents
        + jobs_per_second * DAY_SECONDS
        + files_per_second * ANSWERS_KEPT_SECONDS
    )


def steady_counts(workload: Workload, front: Front, seconds: float) -> Counts:
    """What agents do in so many seconds, and what ingestion jobs read: all that rates alone decide."""
    files = front.files * seconds
    reads, read_bytes = fetches_per_second(workload, front)
    jobs = seconds / front.job_seconds * front.capacity
    ingested = ingested_bytes_per_second(front) * seconds
    return Counts(
        produced_bytes=workload.mb_per_second * MEGABYTE * seconds,
        ingested_bytes=ingested,
        ingestion_files=files,
        ingestion_extents=front.extents * seconds,
        put_ingest=files,
        get_fetch=reads * seconds,
        fetch_bytes=read_bytes * seconds,
        get_compaction=front.passes * files * front.capacity,
        read_bytes=front.passes * ingested * front.capacity,
        ingestion_jobs=jobs,
    )


def ingested_bytes_per_second(front: Front) -> float:
    """What agents write: data, and what sections take beside it."""
    return front.stored_bytes + SECTION_BYTES * front.extents


def fetches_per_second(workload: Workload, front: Front) -> tuple[float, float]:
    """GETs and bytes that agents read at the tail for consumers in other zones than the producers.

    A consumer group has a reader of each partition, in any zone. It is served by its own zone's agent of the
    partition, which has in memory what it took itself, and reads the rest out of the objects of the agents of
    other zones: neighbouring sections together where they are no further apart than 64 KiB.
    """
    if not workload.zone_aware or workload.zones == 1:
        return 0.0, 0.0
    flush = flush_seconds(workload)
    zones, agents = workload.zones, workload.agents / workload.zones
    wanted = wanted_bytes = 0.0  # sections of a file, and their bytes, that one other zone wants, a second
    for topic in workload.topics:
        read = 1 - (1 - 1 / zones) ** topic.consumers
        wanted += read * topic.partition_count * zones * presence(topic, flush, zones) / flush
        wanted_bytes += read * stored_bytes_per_second(topic)
    by_file = wanted / front.files
    by_agent = max(by_file / agents, 1e-12)
    asked = agents * -math.expm1(by_file * math.log1p(-1 / agents)) if agents > 1 else min(1.0, by_file)
    gap = front.stored_bytes / front.files / (by_agent + 1)
    ranges = asked * (1 + max(0.0, by_file / max(asked, 1e-12) - 1) * math.exp(-COALESCED_BYTES / gap))
    return (zones - 1) * front.files * ranges, (zones - 1) * wanted_bytes


def collected(workload: Workload, counts: Counts, died: float, seconds: float) -> None:
    """Count the requests of garbage collection: `died` objects, and looks every `planning_seconds`."""
    rounds = seconds / workload.planning_seconds
    counts.get_gc += rounds  # the marker that says which store it is
    counts.list_gc += rounds + LISTS_OF_A_JOB * counts.jobs  # unfinished uploads, and what jobs left
    counts.deleted_objects += died
    counts.delete_calls += min(died, max(rounds, died / DELETED_AT_ONCE))
