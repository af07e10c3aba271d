"""Lag of consumer groups: pages, ownership, bounds, and what an outage leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agent.cluster.brokers import choose
from agent.groups.consumer_lag import ConsumerLag
from agent.runtime.work_pool import WorkPool
from catalog.errors import CatalogUnavailableError
from catalog.groups.offsets import GroupOffset, OffsetCursor
from catalog.model import Broker
from core.clock import ManualClock
from core.ids import SeededIds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AGENTS = tuple(Broker(node_id=number, host="h", port=1, rack=None, has_local_logs=False) for number in (1, 2))


class Pages:
    """Committed offsets in pages; fails while `is_away`."""

    def __init__(self, offsets: Sequence[GroupOffset]) -> None:
        self.offsets = list(offsets)
        self.calls = 0
        self.is_away = False

    def page(self, after: OffsetCursor, limit: int, /) -> tuple[list[GroupOffset], OffsetCursor | None]:
        self.calls += 1
        if self.is_away:
            raise CatalogUnavailableError("away")
        start = after.partition + 1
        found = self.offsets[start : start + limit]
        return found, OffsetCursor(partition=start + limit - 1) if len(found) == limit else None


class TwoAgents:
    """Live agents; this one is the first."""

    own = AGENTS[0]

    async def live(self) -> Sequence[Broker]:
        return AGENTS

    async def coordinator(self, key: str, /) -> Broker:
        return choose(AGENTS, key.encode())

    def term(self) -> int:
        return 0


def groups_of(agent: Broker, count: int) -> list[str]:
    """Return the names of groups that an agent coordinates."""
    names = (f"group{number}" for number in range(1_000))
    return [name for name in names if choose(AGENTS, b"group:" + name.encode()) is agent][:count]


def lag_of(
    pages: Pages,
    *,
    max_partitions: int = 100,
    page_size: int = 100,
    led: Mapping[tuple[str, int], int] | None = None,
) -> ConsumerLag:
    clock = ManualClock()
    return ConsumerLag(
        pages,
        TwoAgents(),
        pool=WorkPool("catalog", threads=1, max_waiting=1),
        clock=clock,
        ids=SeededIds(1, clock),
        interval_ms=1,
        max_partitions=max_partitions,
        local_high_watermark=lambda topic, partition: (led or {}).get((topic, partition)),
        page_size=page_size,
    )


def shown(lag: ConsumerLag) -> dict[str, list[tuple[tuple[str, ...], float]]]:
    return {
        family.name: [(tuple(sample.labels.values()), sample.value) for sample in family.samples]
        for family in lag.collect()
    }


def test_each_agent_reports_the_groups_that_it_coordinates() -> None:
    """Partitions whose end is unknown are left out, and a lag is never negative."""
    (mine,), (other,) = groups_of(AGENTS[0], 1), groups_of(AGENTS[1], 1)
    pages = Pages(
        [
            GroupOffset(mine, "t", 0, 4, 10),
            GroupOffset(mine, "t", 1, 9, 8),
            GroupOffset(mine, "u", 0, 1, 2),
            GroupOffset(mine, "local", 0, 1, None),
            GroupOffset(other, "t", 0, 0, 10),
        ]
    )
    lag = lag_of(pages)
    asyncio.run(lag.measure())

    found = shown(lag)
    assert found["kafka_consumergroup_lag"] == [
        ((mine, "t", "0"), 6),
        ((mine, "t", "1"), 0),
        ((mine, "u", "0"), 1),
    ]
    assert [value for _, value in found["kafka_consumergroup_current_offset"]] == [4, 9, 1]
    assert found["kafka_consumergroup_lag_sum"] == [((mine, "t"), 6), ((mine, "u"), 1)]
    assert found["siltstone_consumer_lag_omitted_partitions"] == [((), 0)]


def test_the_leader_of_a_local_partition_reports_all_groups_there() -> None:
    """Only the leader knows the end of the log, so it reports groups of other coordinators, too."""
    (mine,), (other,) = groups_of(AGENTS[0], 1), groups_of(AGENTS[1], 1)
    pages = Pages(
        [GroupOffset(group, "local", number, 3, None) for group in (mine, other) for number in range(2)]
    )
    lag = lag_of(pages, led={("local", 1): 10})
    asyncio.run(lag.measure())
    assert shown(lag)["kafka_consumergroup_lag"] == [
        ((mine, "local", "1"), 7),
        ((other, "local", "1"), 7),
    ]


def test_one_page_is_read_at_a_time_and_the_greatest_lags_are_kept() -> None:
    """Values appear after the last page of a round."""
    (mine,) = groups_of(AGENTS[0], 1)
    pages = Pages([GroupOffset(mine, "t", number, 0, number) for number in range(25)])
    lag = lag_of(pages, max_partitions=4, page_size=10)

    async def rounds() -> list[int]:
        seen = []
        for _ in range(3):
            await lag.measure()
            seen.append(len(shown(lag)["kafka_consumergroup_lag"]))
        return seen

    assert asyncio.run(rounds()) == [0, 0, 4]
    assert pages.calls == 3
    found = shown(lag)
    assert sorted(value for _, value in found["kafka_consumergroup_lag"]) == [21, 22, 23, 24]
    assert found["siltstone_consumer_lag_omitted_partitions"] == [((), 21)]


def test_an_outage_removes_the_values_and_its_end_restores_them() -> None:
    (mine,) = groups_of(AGENTS[0], 1)
    pages = Pages([GroupOffset(mine, "t", 0, 0, 7)])
    lag = lag_of(pages)

    async def until(count: int) -> None:
        async with asyncio.timeout(240):
            while len(shown(lag)["kafka_consumergroup_lag"]) != count:  # noqa: ASYNC110  # a collector has no event
                await asyncio.sleep(0.001)

    async def story() -> None:
        lag.start()
        await until(1)
        pages.is_away = True
        await until(0)
        assert lag.is_running
        pages.is_away = False
        await until(1)
        await lag.stop()

    asyncio.run(story())
