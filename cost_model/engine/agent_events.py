"""Agents in the simulation of every event: their files, their reads for consumers, and their maintenance."""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from cost_model.engine.measurements import (
    COALESCING_GAP_BYTES,
    DELETE_BATCH_OBJECTS,
    OWNER_KEEP_SECONDS,
)
from cost_model.engine.simulated_log import Arrival
from maintenance.tasks import CATALOG_SECONDS, DEAD_FILES_SECONDS, ORPHANS_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from catalog.model import PartitionId
    from cost_model.engine.counts import Counts
    from cost_model.engine.simulated_log import SimulatedFile, SimulatedLog
    from cost_model.workload.definition import Workload


class Agents:
    """The files that agents write: each opens with its first batch and closes after the flush interval."""

    def __init__(
        self,
        workload: Workload,
        log: SimulatedLog,
        flush_seconds: float,
        generator: np.random.Generator,
    ) -> None:
        self._log = log
        self._generator = generator
        self._flush_seconds = flush_seconds
        self._keys: list[list[PartitionId]] = [[] for _ in range(workload.agents)]
        rates: list[list[float]] = [[] for _ in range(workload.agents)]
        shared = workload.agents_of_partition
        for number, (key, part) in enumerate(log.partitions.items()):
            for zone in range(shared):
                agent = (number * shared + zone) % workload.agents
                self._keys[agent].append(key)
                rates[agent].append(part.topic.records_per_second / part.topic.batch_records / shared)
        self._rates = [np.array(each) for each in rates]
        self._readers = _readers(workload, log)
        self._closings = [(self._next_closing(agent, 0.0), agent) for agent, each in enumerate(rates) if each]
        heapq.heapify(self._closings)

    def write_until(self, until_ms: int, counts: Counts) -> None:
        """Append the files that are closed up to a time, in this order."""
        while self._closings and self._closings[0][0] * 1000 <= until_ms:
            seconds, agent = self._closings[0]
            heapq.heapreplace(self._closings, (self._next_closing(agent, seconds), agent))
            begun = seconds - self._flush_seconds
            begun_ms = round(begun * 1000)
            arrivals = self._arrivals(agent, begun)
            file = self._log.append(arrivals, begun_ms, round(seconds * 1000))
            counts.put_ingest += 1
            counts.ingestion_extents += len(arrivals)
            counts.ingested_bytes += file.view.size
            self._read(agent, file, counts)

    def _read(self, writer: int, file: SimulatedFile, counts: Counts) -> None:
        """Count the GETs for consumers: each agent of another zone reads the sections that it serves."""
        spans: dict[int, tuple[int, int]] = {}
        for (key, _), extent in sorted(file.live.items(), key=lambda each: each[1].position):
            begin, end = extent.position, extent.position + extent.length
            for reader in self._readers.get((key, writer), ()):
                first, last = spans.get(reader, (begin, begin))
                if reader not in spans or begin - last > COALESCING_GAP_BYTES:
                    counts.get_fetch += 1
                    counts.fetch_bytes += last - first
                    first = begin
                spans[reader] = first, end
        counts.fetch_bytes += sum(last - first for first, last in spans.values())

    def _next_closing(self, agent: int, seconds: float) -> float:
        pause = self._generator.exponential(1 / self._rates[agent].sum())
        return float(seconds + pause + self._flush_seconds)

    def _arrivals(self, agent: int, begun: float) -> dict[PartitionId, Arrival]:
        rates, keys = self._rates[agent], self._keys[agent]
        batches = self._generator.poisson(rates * self._flush_seconds)
        # The last of n batches arrives after n / (n + 1) of the time on average. Another one opens the file.
        last_ms = (begun + self._flush_seconds * batches / (batches + 1)) * 1000
        batches[self._generator.choice(len(rates), p=rates / rates.sum())] += 1
        parts = self._log.partitions
        return {
            keys[number]: Arrival(
                records=int(batches[number]) * parts[keys[number]].topic.batch_records,
                last_ms=round(last_ms[number]),
            )
            for number in np.flatnonzero(batches).tolist()
        }


class Maintenance:
    """Rounds of retention and garbage collection: tasks delete dead files, and list what ended jobs left."""

    def __init__(self, workload: Workload, generator: np.random.Generator) -> None:
        self._generator = generator
        self._grace_ms = workload.grace_seconds * 1000
        self._retention_ms = self._dead_round_ms = self._sweep_ms = 0.0
        self.dead: deque[tuple[int, SimulatedFile]] = deque()
        self._unlisted: tuple[deque[int], ...] = (deque(), deque())
        self._list_after_ms = (self._grace_ms, max(self._grace_ms, OWNER_KEEP_SECONDS * 1000))

    def retention_is_due(self, now_ms: int) -> bool:
        """Return True if a round of retention has begun since the last call."""
        is_due = self._retention_ms <= now_ms
        while self._retention_ms <= now_ms:
            self._retention_ms += self._interval_ms(CATALOG_SECONDS)
        return is_due

    def job_ended(self, now_ms: int) -> None:
        """Note a job, whose prefix is listed after the grace period and before its row is deleted."""
        for each in self._unlisted:
            each.append(now_ms)

    def run_until(self, now_ms: int, dead: Iterable[SimulatedFile], counts: Counts) -> None:
        """Run the rounds that are due; `dead` are the files that died since the last call."""
        self.dead.extend((now_ms, file) for file in dead)
        while self._dead_round_ms <= now_ms:
            self._dead_round_ms += self._interval_ms(DEAD_FILES_SECONDS)
            counts.get_gc += 1
            deleted = 0
            while self.dead and self.dead[0][0] <= now_ms - self._grace_ms:
                self.dead.popleft()
                deleted += 1
            counts.deleted_objects += deleted
            counts.delete_calls += -(-deleted // DELETE_BATCH_OBJECTS)
        while self._sweep_ms <= now_ms:
            self._sweep_ms += self._interval_ms(ORPHANS_SECONDS)
            counts.get_gc += 1
            listed = 0
            for jobs, after_ms in zip(self._unlisted, self._list_after_ms, strict=True):
                while jobs and jobs[0] <= now_ms - after_ms:
                    jobs.popleft()
                    listed += 1
            counts.list_gc += 1 + listed + min(1, listed)  # unfinished uploads, jobs, and old names

    def _interval_ms(self, seconds: float) -> float:
        return float(seconds * 1000 * self._generator.uniform(0.9, 1.1))


def _readers(workload: Workload, log: SimulatedLog) -> dict[tuple[PartitionId, int], tuple[int, ...]]:
    """Return, by partition and writing agent, the agents that read its sections for consumers.

    Each consumer group has a consumer of the partition in one zone, spread evenly. The agent of this zone
    reads what the agents of other zones wrote.
    """
    if not workload.zone_aware or workload.zones == 1:
        return {}
    zones = workload.zones
    found: dict[tuple[PartitionId, int], tuple[int, ...]] = {}
    for number, (key, part) in enumerate(log.partitions.items()):
        consuming = {(number + group) % zones for group in range(part.topic.consumers)}
        agents = [(number * zones + zone) % workload.agents for zone in range(zones)]
        for zone, writer in enumerate(agents):
            found[key, writer] = tuple(agents[each] for each in sorted(consuming) if each != zone)
    return found
