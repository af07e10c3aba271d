"""Lag of consumer groups, under the names of kafka_exporter.

An agent reports the groups that it coordinates. The end of a local partition is known to its leader alone, so
the leader reports the lags of all groups there.

One bounded query per interval reads the next committed offsets of all groups, with or without members. A
stopped consumer therefore has a lag, too. A round ends with the last page; then its values are published.
Threads of the catalog pool do all of the work. Memory and the number of series are bounded: if a round finds
more partitions than `max_partitions`, those with the greatest lag are kept.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from agent.cluster.brokers import Coordinators
from agent.runtime.health import start_essential_task, stop_task
from catalog.groups.offsets import OffsetCursor
from core.outage import Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client.metrics_core import Metric

    from agent.groups.ownership import Brokers
    from agent.runtime.work_pool import WorkPool
    from catalog.groups.offsets import GroupOffset
    from catalog.model import Broker
    from core.clock import Clock
    from core.ids import Ids

_PAGE_SIZE: Final = 10_000


class OffsetPages(Protocol):
    """The committed offsets of all groups."""

    def page(self, after: OffsetCursor, limit: int, /) -> tuple[list[GroupOffset], OffsetCursor | None]:
        """Return the next offsets by key, and the cursor of the page after them."""
        ...


class PartitionLag(NamedTuple):
    """Lag of a group in one partition."""

    lag: int
    group_id: str
    topic: str
    partition: int
    committed_offset: int


@dataclass(slots=True)
class _Round:
    """The greatest lags of the pages that were read, and the number of partitions that were left out."""

    lags: list[PartitionLag] = field(default_factory=list)
    omitted: int = 0


class ConsumerLag(Collector):
    """Background task that measures lag, and the collector of its last result."""

    def __init__(
        self,
        offsets: OffsetPages,
        brokers: Brokers,
        *,
        pool: WorkPool,
        clock: Clock,
        ids: Ids,
        interval_ms: int,
        max_partitions: int,
        local_high_watermark: Callable[[str, int], int | None],
        page_size: int = _PAGE_SIZE,
    ) -> None:
        """Take the offsets of all groups and the agents that coordinate them.

        `local_high_watermark` returns the high watermark of a partition of a local topic, or None unless this
        agent leads it. Threads of `pool` call it.
        """
        self._offsets = offsets
        self._brokers = brokers
        self._local_high_watermark = local_high_watermark
        self._pool = pool
        self._interval_seconds = interval_ms / 1000
        self._max_partitions = max_partitions
        self._page_size = page_size
        self._outage = Outage("consumer lag", clock=clock, ids=ids, max_pause_seconds=self._interval_seconds)
        self._cursor = OffsetCursor()
        self._coordinators = Coordinators()  # for the thread that reads a page
        self._round = _Round()
        self._published = _Round()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task; it measures at once."""
        self._task = start_essential_task(self._run(), name="consumer lag")

    @property
    def is_running(self) -> bool:
        """Return True if the task runs."""
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        """Stop the task."""
        await stop_task(self._task)

    async def measure(self) -> None:
        """Read one page; after the last page, publish the lags of the round."""
        live = await self._brokers.live()
        cursor = await self._pool.run(partial(self._read_page, live))
        if cursor is None:
            self._published, self._round = self._round, _Round()
        self._cursor = cursor or OffsetCursor()

    async def _run(self) -> None:
        while True:
            try:
                await self.measure()
            except Exception as error:  # noqa: BLE001  # the task must survive any failure
                self._cursor, self._round, self._published = OffsetCursor(), _Round(), _Round()
                pause = self._outage.failed(error)
            else:
                self._outage.succeeded()
                pause = self._interval_seconds
            await asyncio.sleep(pause)

    def _read_page(self, live: Sequence[Broker]) -> OffsetCursor | None:
        found, cursor = self._offsets.page(self._cursor, self._page_size)
        own, mine = self._brokers.own.node_id, self._round
        for each in found:
            end = each.high_watermark
            if end is None:
                end = self._local_high_watermark(each.topic_name, each.partition)
            elif self._coordinators.of(live, each.group_id).node_id != own:
                continue
            if end is not None:
                lag = max(0, end - each.committed_offset)
                mine.lags.append(
                    PartitionLag(lag, each.group_id, each.topic_name, each.partition, each.committed_offset)
                )
        excess = len(mine.lags) - self._max_partitions
        if excess > 0:
            mine.lags = heapq.nlargest(self._max_partitions, mine.lags, key=attrgetter("lag"))
            mine.omitted += excess
        return cursor

    @override
    def collect(self) -> Iterable[Metric]:
        """Yield the lags of the last round."""
        published = self._published
        labels = ["consumergroup", "topic", "partition"]
        lag = GaugeMetricFamily(
            "kafka_consumergroup_lag", "High watermark minus committed offset of a partition", labels=labels
        )
        current = GaugeMetricFamily(
            "kafka_consumergroup_current_offset", "Committed offset of a partition", labels=labels
        )
        total = GaugeMetricFamily(
            "kafka_consumergroup_lag_sum", "Sum of the lags of a topic's partitions", labels=labels[:2]
        )
        sums: dict[tuple[str, str], int] = defaultdict(int)
        for each in published.lags:
            values = [each.group_id, each.topic, str(each.partition)]
            lag.add_metric(values, each.lag)
            current.add_metric(values, each.committed_offset)
            sums[each.group_id, each.topic] += each.lag
        for names, value in sums.items():
            total.add_metric(list(names), value)
        yield from (lag, current, total)
        yield GaugeMetricFamily(
            "siltstone_consumer_lag_omitted_partitions",
            "Committed offsets without a lag metric, because consumer_lag_max_partitions is reached",
            value=published.omitted,
        )
