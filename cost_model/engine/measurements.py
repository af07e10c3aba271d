"""Samples of a simulated log in units of the real system, and counts that follow from steady rates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from cost_model.engine.counts import Counts, Sample
from cost_model.engine.simulated_log import SECTION_BYTES
from cost_model.engine.steady_rates import arrival_probability, stored_bytes_per_second
from maintenance.tasks import DEAD_FILES_SECONDS, ORPHANS_SECONDS

if TYPE_CHECKING:
    from cost_model.engine.simulated_log import SimulatedLog, SimulatedPartition
    from cost_model.engine.steady_rates import SteadyRates
    from cost_model.workload.definition import Workload

COALESCING_GAP_BYTES: Final = 64 * 1024
"""Agents read ranges of one object in one request if they are no further apart (`agent.settings`)."""

LISTS_PER_JOB: Final = 2
"""Garbage collection lists a job's prefix when the job ends, and again before it deletes the job's row."""

DELETE_BATCH_OBJECTS: Final = 1000
DAY_SECONDS: Final = 86_400
RESPONSES_KEPT_SECONDS: Final = 3_600


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

    They are extents, files, topics, partitions, producers, sessions, the jobs of a day and saved responses.
    """
    topics = sum(each.topics for each in workload.topics)
    agents = workload.agents_of_partition
    sample.rows = (
        sample.extents
        + sample.objects
        + topics
        + workload.partition_count * (1 + agents)  # an idempotent producer for each agent and partition
        + workload.agents
        + jobs_per_second * DAY_SECONDS
        + files_per_second * RESPONSES_KEPT_SECONDS
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
    their objects, and neighbouring sections in one request if they are at most 64 KiB apart.
    """
    if not workload.zone_aware or workload.zones == 1:
        return 0.0, 0.0
    flush = rates.flush_seconds
    zones, agents = workload.zones, workload.agents / workload.zones
    wanted = wanted_bytes = 0.0  # sections and bytes per second that the consumers of one other zone read
    for topic in workload.topics:
        read = 1 - (1 - 1 / zones) ** topic.consumers
        wanted += read * topic.partition_count * zones * arrival_probability(topic, flush, zones) / flush
        wanted_bytes += read * stored_bytes_per_second(topic)
    by_file = wanted / rates.files
    by_agent = max(by_file / agents, 1e-12)
    asked = agents * -math.expm1(by_file * math.log1p(-1 / agents)) if agents > 1 else min(1.0, by_file)
    gap = rates.stored_bytes / rates.files / (by_agent + 1)
    ranges = asked * (1 + max(0.0, by_file / max(asked, 1e-12) - 1) * math.exp(-COALESCING_GAP_BYTES / gap))
    return (zones - 1) * rates.files * ranges, (zones - 1) * wanted_bytes


def count_garbage_collection(counts: Counts, dead: float, seconds: float) -> None:
    """Count the requests of garbage collection for `dead` objects.

    Agents run one round of each task per interval, whatever their number, because a task has one lease.
    """
    rounds, sweeps = seconds / DEAD_FILES_SECONDS, seconds / ORPHANS_SECONDS
    listed = LISTS_PER_JOB * counts.jobs
    counts.get_gc += rounds + sweeps  # the marker object that identifies the store
    # Unfinished uploads, the prefixes of jobs, and in a sweep with jobs whether there are old names.
    counts.list_gc += sweeps + listed + min(sweeps, listed)
    counts.deleted_objects += dead
    counts.delete_calls += min(dead, max(rounds, dead / DELETE_BATCH_OBJECTS))
