"""Samples of a simulated log in units of the real system, and counts that follow from steady rates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from cost_model.engine.counts import Counts, Sample
from cost_model.engine.simulated_log import SECTION_BYTES
from cost_model.rates.steady_rates import (
    partitions_of_agent,
    presence,
    sections_per_file,
    stored_bytes_per_second,
)
from maintenance.settings import MaintenanceSettings
from maintenance.tasks import DEAD_FILES_SECONDS, ORPHANS_SECONDS

if TYPE_CHECKING:
    from cost_model.engine.simulated_log import SimulatedLog, SimulatedPartition
    from cost_model.rates.steady_rates import SteadyRates
    from cost_model.workload.definition import Workload

COALESCING_GAP_BYTES: Final = 64 * 1024
"""Agents read ranges of one object in one request if they are no further apart (`agent.settings`)."""

LISTS_PER_JOB: Final = 2
"""Garbage collection lists a job's prefix when the job ends, and again before it deletes the job's row."""

OWNER_KEEP_SECONDS: Final = MaintenanceSettings().owner_keep_ms / 1000
DELETE_BATCH_OBJECTS: Final = MaintenanceSettings().batch
DAY_SECONDS: Final = 86_400
RESPONSES_KEPT_SECONDS: Final = 3_600
_ALMOST_ONE: Final = 1 - 1e-12


def sample_of(log: SimulatedLog, day: float) -> Sample:
    """Return a sample of the log, without files that exist only within a round."""
    thinning = log.scale.thinning
    sample = Sample(day=day)
    for part in log.partitions.values():
        live = sum(extent.length for extent in part.extents)
        sample.extents += part.weight * part.row_count
        sample.live_bytes += thinning * live
        if part.rules.compacted:
            sample.compacted_topic_bytes += thinning * (live + part.mean_dirty_bytes)
            sample.dirty_bytes += thinning * (part.dirty_bytes() + part.mean_dirty_bytes)
            sample.ideal_bytes += thinning * min(live, _ideal(part))
        else:
            sample.ideal_bytes += thinning * live
    for file in (*log.files.values(), *log.ingestion.values()):
        sample.stored_bytes += thinning * file.view.size
        sample.objects += file.objects
    return sample


def _ideal(part: SimulatedPartition) -> int:
    """Return the bytes of one record per key, tombstones included."""
    return part.length_of(part.records.distinct(part.log_end - part.log_start))


def add_rows(sample: Sample, workload: Workload, files_per_second: float, jobs_per_second: float) -> None:
    """Add up the rows of the catalog.

    They are extents, files, topics, partitions, producers, sessions, the jobs of a day and the saved
    responses of an hour, or fewer at the beginning.
    """
    seconds = sample.day * DAY_SECONDS
    topics = sum(each.topics for each in workload.topics)
    agents = workload.agents_of_partition
    sample.rows = (
        sample.extents
        + sample.objects
        + topics
        + workload.partition_count * (1 + agents)  # an idempotent producer for each agent and partition
        + workload.agents
        + jobs_per_second * min(DAY_SECONDS, seconds)
        + files_per_second * min(RESPONSES_KEPT_SECONDS, seconds)
    )


def steady_counts(workload: Workload, rates: SteadyRates, seconds: float) -> Counts:
    """Return what agents do and what ingestion jobs read in some seconds.

    These are the counts that follow from rates alone.
    """
    files = rates.files * seconds
    reads, read_bytes = fetches_per_second(workload, rates)
    jobs = seconds / rates.job_seconds * rates.capacity
    ingested = ingested_bytes_per_second(rates) * seconds
    return Counts(
        ingested_bytes=ingested,
        ingestion_extents=rates.extents * seconds,
        put_ingest=files,
        get_fetch=reads * seconds,
        fetch_bytes=read_bytes * seconds,
        get_compaction=rates.passes * files * rates.capacity,
        read_bytes=rates.passes * ingested * rates.capacity,
        ingestion_jobs=jobs,
    )


def ingested_bytes_per_second(rates: SteadyRates) -> float:
    """Return the bytes that agents write: data and the overhead of sections."""
    return rates.stored_bytes + SECTION_BYTES * rates.extents


def fetches_per_second(workload: Workload, rates: SteadyRates) -> tuple[float, float]:
    """Return the GETs and bytes per second that agents read for consumers in other zones than the producers.

    A consumer group has one consumer for each partition, in any zone, served by its own zone's agent of the
    partition. That agent has its own records in memory. It reads the records of other zones' agents from
    their objects, and neighbouring sections in one request if they are at most 64 KiB apart, with the bytes
    between them.
    """
    if not workload.zone_aware or workload.zones == 1:
        return 0.0, 0.0
    zones, agents = workload.zones, workload.agents / workload.zones
    by_file = wanted_bytes = absent = 0.0
    for topic in workload.topics:
        read = 1 - (1 - 1 / zones) ** topic.consumers
        # Sections of a file that the consumers of one other zone read, and bytes per second
        by_file += read * sections_per_file(workload, topic, rates.flush_seconds)
        wanted_bytes += read * stored_bytes_per_second(topic)
        each = read / agents * partitions_of_agent(workload, topic)
        absent += each * math.log1p(-min(presence(workload, topic, rates.flush_seconds), _ALMOST_ONE))
    asked = max(agents * -math.expm1(absent), 1e-12)  # agents that read the file, each for its share
    pairs = max(0.0, by_file / asked - 1)  # of neighbouring sections that an agent reads
    unread = (rates.stored_bytes - wanted_bytes) / rates.files
    gap = max(unread, 1.0) / (pairs + 2)
    near = COALESCING_GAP_BYTES / gap
    ranges = 1 + pairs * math.exp(-near)
    between = pairs * gap * (1 - math.exp(-near) * (1 + near))  # read, but not wanted
    read_bytes = wanted_bytes + rates.files * asked * between
    return (zones - 1) * rates.files * asked * ranges, (zones - 1) * read_bytes


def count_garbage_collection(counts: Counts, dead: float, seconds: float, planning_seconds: float) -> None:
    """Count the requests of garbage collection for `dead` objects.

    Agents run one round of each task per interval, however many there are, because a task has one lease.
    """
    rounds, sweeps = seconds / DEAD_FILES_SECONDS, seconds / ORPHANS_SECONDS
    listed = LISTS_PER_JOB * counts.jobs
    counts.get_gc += rounds + sweeps  # the marker object that identifies the store
    # Unfinished uploads, the prefixes of jobs, and in a sweep with jobs whether there are old names.
    counts.list_gc += sweeps + listed + min(sweeps, listed)
    counts.deleted_objects += dead
    # Files die when jobs are published, so a round between two plans finds nothing to delete.
    bursts = min(rounds, seconds / planning_seconds, counts.jobs)
    counts.delete_calls += min(dead, max(bursts, dead / DELETE_BATCH_OBJECTS))
