"""Windows that are read ahead of sequential readers, in requests and bytes (never in time)."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from agent.read.fetch_plan import PartitionFetch
from object_store.accounting import Purpose, RequestKind
from object_store.errors import StoreUnavailableError
from tests.agent.small_compaction import compact

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agent.app import Agent
    from catalog.model import Topic
    from catalog.open import Catalog
    from core.ids import Ids
    from tests.agent.faulty_store import FaultyStore
    from tests.agent.running_agents import Agents

pytestmark = [pytest.mark.anyio, pytest.mark.integration]
_RECORDS = 400


@dataclass
class Reader:
    """Reads a partition sequentially, and counts the requests to the store."""

    agent: Agent
    store: FaultyStore
    topic: Topic
    offset: int = 0
    max_bytes: int = 2_000

    def gets(self) -> int:
        return self.store.counts.snapshot().of(RequestKind.GET, Purpose.FETCH).requests

    def bytes_read(self) -> int:
        return self.store.counts.snapshot().of(RequestKind.GET, Purpose.FETCH).bytes_in

    async def fetch(self) -> int:
        """Fetch once; return the number of requests, including those of the window for the next fetch."""
        before = self.gets()
        wanted = PartitionFetch(topic=self.topic, partition=0, offset=self.offset, max_bytes=self.max_bytes)
        result = await self.agent.data.read_path.fetch_one(wanted)
        assert result.next_offset > self.offset
        self.offset = result.next_offset
        await self.windows_read()
        return self.gets() - before

    async def windows_read(self) -> None:
        await self.agent.data.read_path.read_ahead.idle()

    def outcomes(self) -> dict[str, float]:
        (family,) = self.agent.metrics.read_ahead.collect()
        return {
            sample.labels["outcome"]: sample.value
            for sample in family.samples
            if sample.name.endswith("_total")
        }


@pytest.fixture
async def topic(agents: Agents, catalog: Catalog, store: FaultyStore, ids: Ids) -> Topic:
    """One large section of about forty blocks."""
    made = catalog.topics.create("t", 1, {"cleanup.policy": "compact", "compression.type": "uncompressed"})
    async with agents.running() as running:
        for start in range(0, _RECORDS, 100):
            records = [{"key": str(n), "value": "x" * 20} for n in range(start, start + 100)]
            await running.produce("t", *records)
    compact(catalog, store, ids, made, keep=lambda _: True)
    return made


@asynccontextmanager
async def reading(
    agents: Agents,
    store: FaultyStore,
    topic: Topic,
    **changes: Any,  # noqa: ANN401  # any setting
) -> AsyncIterator[Reader]:
    async with agents.running(index_threshold_bytes=1, **changes) as running:
        yield Reader(running.agent, store, topic)


async def test_a_sequential_reader_is_served_from_windows(
    agents: Agents, store: FaultyStore, topic: Topic
) -> None:
    """The second consecutive fetch starts a window, from which the following fetches are served."""
    async with reading(agents, store, topic, read_ahead_bytes=10_000) as reader:
        assert await reader.fetch() == 2  # the index and the requested range
        assert await reader.fetch() == 2  # the requested range and the window
        counts = [await reader.fetch() for _ in range(8)]
        assert sum(counts) <= 3
        assert counts[:3] == [0, 0, 0]
        while reader.offset < _RECORDS:
            await reader.fetch()
        assert reader.outcomes()["read"] >= 2


async def test_a_whole_section_costs_fewer_requests_and_hardly_more_bytes(
    agents: Agents, store: FaultyStore, topic: Topic
) -> None:
    spent = {}
    for size in (0, 10_000):
        async with reading(agents, store, topic, read_ahead_bytes=size) as reader:
            before, bytes_before = reader.gets(), reader.bytes_read()
            while reader.offset < _RECORDS:
                await reader.fetch()
            spent[size] = (reader.gets() - before, reader.bytes_read() - bytes_before)
    assert spent[10_000][0] * 2 < spent[0][0]
    assert spent[10_000][1] < 1.3 * spent[0][1]


async def test_nothing_is_read_ahead_of_random_reads(
    agents: Agents, store: FaultyStore, topic: Topic
) -> None:
    async with reading(agents, store, topic) as reader:
        await reader.fetch()
        for offset in (300, 100, 200, 350):
            reader.offset = offset
            assert await reader.fetch() == 1
        assert reader.outcomes() == {}


async def test_a_reader_that_stops_costs_one_needless_window(
    agents: Agents, store: FaultyStore, topic: Topic
) -> None:
    async with reading(agents, store, topic, read_ahead_bytes=4_000) as reader:
        await reader.fetch()
        await reader.fetch()
        assert reader.outcomes() == {"read": 1}
        assert reader.agent.metrics.read_ahead_bytes._value.get() <= 4_000


async def test_windows_beyond_the_memory_limit_are_not_read(
    agents: Agents, store: FaultyStore, topic: Topic
) -> None:
    async with reading(agents, store, topic, max_read_ahead_bytes=100) as reader:
        await reader.fetch()
        assert await reader.fetch() == 1
        assert reader.outcomes().keys() == {"no memory"}


async def test_a_window_that_cannot_be_read_fails_no_fetch(
    agents: Agents, store: FaultyStore, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next fetch reads its ranges itself."""
    read_range = store.read_range

    def failing(name: str, position: int, length: int, *, purpose: Purpose) -> bytearray:
        if length > reader.max_bytes:
            raise StoreUnavailableError("the store is away")
        return read_range(name, position, length, purpose=purpose)

    async with reading(agents, store, topic) as reader:
        await reader.fetch()
        with monkeypatch.context() as patch:
            patch.setattr(store, "read_range", failing)
            assert await reader.fetch() == 1
        assert reader.outcomes()["failed"] >= 1
        assert await reader.fetch() == 2


async def test_a_window_of_a_large_section_is_read_concurrently_with_the_fetch(
    agents: Agents, store: FaultyStore, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both requests run at the same time, and the next fetches find their ranges in the window."""
    gate, read_range = threading.Event(), store.read_range

    def gated(name: str, position: int, length: int, *, purpose: Purpose) -> bytearray:
        gate.wait()
        return read_range(name, position, length, purpose=purpose)

    async with reading(agents, store, topic, read_ahead_bytes=10_000) as reader:
        await reader.fetch()
        reads = reader.agent.resources.pools.hot_reads
        with monkeypatch.context() as patch:
            patch.setattr(store, "read_range", gated)
            fetching = asyncio.create_task(reader.fetch())
            try:
                async with asyncio.timeout(240):
                    while reads.pending < 2:  # noqa: ASYNC110  # it sends no notification
                        await asyncio.sleep(0)
            finally:
                gate.set()
            assert await fetching == 2
        assert [await reader.fetch() for _ in range(3)] == [0, 0, 0]
        assert reader.outcomes() == {"read": 1}


async def _small_extents(agents: Agents, catalog: Catalog) -> tuple[Topic, int]:
    """Return a topic with thirty extents, each in a separate object, and the size of one."""
    made = catalog.topics.create("s", 1, {})
    async with agents.running() as running:
        for number in range(30):
            await running.produce("s", {"key": "k", "value": f"{number:0100}"})
    (size, *_) = {extent.length for extent in catalog.extents.from_offset(made.topic_id, 0, 0)}
    return made, size


async def test_of_small_extents_more_are_read_ahead_the_longer_a_reader_continues(
    agents: Agents, catalog: Catalog, store: FaultyStore
) -> None:
    """Each of them costs only the one request that it needs anyway, and no more are unread than were read."""
    made, size = await _small_extents(agents, catalog)
    async with reading(agents, store, made) as reader:
        reader.max_bytes = 3 * size
        before = reader.gets()
        ahead = []
        while reader.offset < 30:
            await reader.fetch()
            ahead.append(reader.gets() - before - reader.offset)
            assert ahead[-1] <= reader.offset
        assert reader.gets() - before == 30
        assert ahead[:4] == [0, 3, 6, 12]


async def test_the_setting_bounds_how_far_small_extents_are_read_ahead(
    agents: Agents, catalog: Catalog, store: FaultyStore
) -> None:
    made, size = await _small_extents(agents, catalog)
    async with reading(agents, store, made, read_ahead_bytes=5 * size) as reader:
        reader.max_bytes = 3 * size
        before = reader.gets()
        while reader.offset < 30:
            await reader.fetch()
            assert reader.gets() - before - reader.offset <= 5
        assert reader.gets() - before == 30


async def test_readers_of_several_partitions_share_the_memory(
    agents: Agents, catalog: Catalog, store: FaultyStore
) -> None:
    """A window grows to a part of the memory only, so that the others get windows, too."""
    made, size = await _small_extents(agents, catalog)
    async with reading(agents, store, made, max_read_ahead_bytes=8 * size) as reader:
        reader.max_bytes = size
        before = reader.gets()
        while reader.offset < 30:
            await reader.fetch()
            assert reader.gets() - before - reader.offset <= 4
        assert reader.outcomes().keys() == {"read"}


async def test_a_window_of_many_small_extents_leaves_threads_to_fetches(
    agents: Agents, catalog: Catalog, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests use only some of the threads."""
    made, size = await _small_extents(agents, catalog)
    gate, read_range = threading.Event(), store.read_range

    def gated(name: str, position: int, length: int, *, purpose: Purpose) -> bytearray:
        gate.wait()
        return read_range(name, position, length, purpose=purpose)

    async with reading(agents, store, made, cold_read_threads=4) as reader:
        reader.max_bytes = 10 * size
        asked_for = await reader.fetch()
        reads = reader.agent.resources.pools.hot_reads  # requests of fetches and of windows use the same pool
        monkeypatch.setattr(store, "read_range", gated)
        fetching = asyncio.create_task(reader.fetch())
        try:
            async with asyncio.timeout(240):
                while reads.pending <= asked_for:  # noqa: ASYNC110  # it sends no notification
                    await asyncio.sleep(0)
            for _ in range(50):
                await asyncio.sleep(0)
            assert reads.pending == asked_for + 2
        finally:
            gate.set()
        assert await fetching == 2 * asked_for
        assert reader.outcomes() == {"read": 1}
