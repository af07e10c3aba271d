"""The tail cache on disk: the requests that it saves, and that no data depends on it."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from agent.listeners import KafkaListener
from agent.read.fetch_plan import PartitionFetch
from agent.runtime.process_resources import open_file_count
from local_tier.files.file_system import RealFileSystem, RealMapping, mapped_file_count
from object_store.accounting import RequestKind
from tests.agent.small_compaction import compact
from tests.catalog.scene import advance_log_start
from tests.local_tier.hanging_disk import HangingDisk
from tests.local_tier.steps import SteppedFileSystem

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.open import Catalog
    from core.ids import Ids
    from tests.agent.faulty_store import FaultyStore
    from tests.agent.running_agents import Agents, RunningAgent

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

#: Nothing in memory: records that are not on disk come from the object store.
NO_MEMORY = {"tail_bytes": 0, "cache_bytes": 0}
PARTITIONS = 60


async def _values(running: RunningAgent, offset: int = 0, partition: int = 0) -> list[str]:
    values: list[str] = []
    while True:
        page = await running.read("t", partition, offset=offset)
        values += [record["value"] for record in page["records"]]
        if page["next_offset"] >= page["high_watermark"]:
            return values
        offset = page["next_offset"]


async def _produce(running: RunningAgent, first: int, count: int) -> None:
    for number in range(first, first + count):
        record: dict[str, Any] = {"key": f"k{number % 3}", "value": str(number), "timestamp": 1000 + number}
        await running.produce("t", record)
    await running.agent.data.local_logs.tail_cache.idle()


async def test_the_tail_cache_serves_offsets_and_timestamps_without_a_get(
    agents: Agents, tmp_path: Path
) -> None:
    async with agents.running(local_directories=(tmp_path / "disk",), **NO_MEMORY) as running:
        await running.create_topic("t", 1)
        await _produce(running, 0, 6)
        assert await _values(running) == [str(number) for number in range(6)]
        page = await running.read("t", timestamp=1003)
        assert [record["value"] for record in page["records"]] == ["3", "4", "5"]
        assert agents.requests(RequestKind.GET) == 0
        assert running.agent.data.local_logs.reader.tail_cache_hits > 0


async def test_the_tail_cache_continues_after_a_restart(agents: Agents, tmp_path: Path) -> None:
    disk = (tmp_path / "disk",)
    for start in (0, 3):
        async with agents.running(local_directories=disk, **NO_MEMORY) as running:
            if start == 0:
                await running.create_topic("t", 1)
            await _produce(running, start, 3)
            assert await _values(running) == [str(number) for number in range(start + 3)]
            assert running.agent.data.local_logs.tail_cache.restarts == 0
    assert agents.requests(RequestKind.GET) == 0


async def test_the_tail_cache_restarts_after_a_commit_of_another_agent(
    agents: Agents, tmp_path: Path
) -> None:
    async with (
        agents.running(local_directories=(tmp_path / "one",), **NO_MEMORY) as one,
        agents.running(local_directories=(tmp_path / "two",), **NO_MEMORY) as two,
    ):
        await one.create_topic("t", 1)
        await _produce(one, 0, 2)
        await _produce(two, 2, 2)
        await _produce(one, 4, 2)
        before = agents.requests(RequestKind.GET)
        assert await _values(one, 4) == ["4", "5"]
        assert agents.requests(RequestKind.GET) == before
        assert one.agent.data.local_logs.tail_cache.restarts == 1
        for running in (one, two):
            assert await _values(running) == [str(number) for number in range(6)]


async def test_the_loss_of_the_tail_cache_loses_no_records(agents: Agents, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    async with agents.running(local_directories=(disk,), **NO_MEMORY) as running:
        await running.create_topic("t", 1)
        await _produce(running, 0, 4)
    shutil.rmtree(disk)
    async with agents.running(local_directories=(disk,), **NO_MEMORY) as running:
        assert await _values(running) == ["0", "1", "2", "3"]
        await _produce(running, 4, 1)
        assert await _values(running) == ["0", "1", "2", "3", "4"]


async def test_records_removed_by_compaction_are_not_read_from_the_tail_cache(
    agents: Agents, catalog: Catalog, store: FaultyStore, ids: Ids, tmp_path: Path
) -> None:
    async with agents.running(local_directories=(tmp_path / "disk",), **NO_MEMORY) as running:
        await running.create_topic("t", 1, cleanup_policy="compact")
        await _produce(running, 0, 6)
        assert await _values(running) == [str(number) for number in range(6)]
        assert agents.requests(RequestKind.GET) == 0
        compact(catalog, store, ids, catalog.topics.get("t"), keep=lambda record: record.offset >= 3)
        assert await _values(running) == ["3", "4", "5"]
        before = agents.requests(RequestKind.GET)
        await _produce(running, 6, 1)
        assert await _values(running, 6) == ["6"]
        assert agents.requests(RequestKind.GET) == before


async def test_the_tail_cache_shows_no_record_that_was_removed_while_the_topic_was_compacted(
    agents: Agents, catalog: Catalog, store: FaultyStore, ids: Ids, tmp_path: Path
) -> None:
    """The policy is delete again, so the tail cache is used, and it has what was written before."""
    disk = (tmp_path / "disk",)
    async with agents.running(local_directories=disk, topic_cache_ms=1, **NO_MEMORY) as running:
        await running.create_topic("t", 1)
        await _produce(running, 0, 6)
        catalog.topics.alter_config("t", {"cleanup.policy": "compact"})
        compact(catalog, store, ids, catalog.topics.get("t"), keep=lambda record: record.offset >= 3)
        catalog.topics.alter_config("t", {"cleanup.policy": "delete"})
        running.agent.data.read_path._log.clear()
        assert await _values(running) == ["3", "4", "5"]
        page = await running.read("t", timestamp=1001, max_records=1)
        assert [record["offset"] for record in page["records"]] == [3]
        found = await running.agent.data.timestamps.find(
            catalog.topics.get("t"), 0, 1001, log_start_offset=0, budget=running.agent.data.read_path.budget
        )
        assert found is not None
        assert (found.offset, found.timestamp) == (3, 1003)
        before = agents.requests(RequestKind.GET)
        await _produce(running, 6, 1)
        assert await _values(running, 6) == ["6"]
        assert agents.requests(RequestKind.GET) == before


async def test_deleted_records_are_out_of_range_in_the_tail_cache(
    agents: Agents, catalog: Catalog, tmp_path: Path
) -> None:
    async with agents.running(
        local_directories=(tmp_path / "disk",), bounds_cache_ms=1, **NO_MEMORY
    ) as running:
        await running.create_topic("t", 1)
        await _produce(running, 0, 4)
        advance_log_start(catalog.retention, catalog.topics.get("t").topic_id, 0, 2)
        response = await running.http.get("/v1/topics/t/partitions/0/records", params={"offset": 1})
        assert response.status_code == 416
        assert await _values(running, 2) == ["2", "3"]


async def test_a_tail_cache_that_cannot_keep_up_skips_files(agents: Agents, tmp_path: Path) -> None:
    async with agents.running(
        local_directories=(tmp_path / "disk",), max_tail_cache_pending_bytes=1, **NO_MEMORY
    ) as running:
        await running.create_topic("t", 1)
        await _produce(running, 0, 3)
        assert running.agent.data.local_logs.tail_cache.dropped_files == 3
        assert await _values(running) == ["0", "1", "2"]
        assert running.agent.data.local_logs.reader.tail_cache_hits == 0


async def test_the_tail_cache_leaves_open_files_to_logs_with_records_of_their_own(
    agents: Agents, tmp_path: Path
) -> None:
    """A disk counts as failed if a file in it cannot be opened."""
    listeners = (KafkaListener(port=0),)
    async with agents.running(
        local_directories=(tmp_path / "disk",), kafka_listeners=listeners, **NO_MEMORY
    ) as running:
        await running.create_topic("t", PARTITIONS)
        await running.create_topic("local", 1, storage_mode="local")
        await running.produce("local", {"value": "before"})
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, ((open_file_count() + 30) * 4 // 3, hard))
        try:
            for partition in range(PARTITIONS):
                await running.produce("t", {"value": "x"}, partition=partition)
                await running.agent.data.local_logs.tail_cache.idle()
            await running.produce("local", {"value": "after"})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        local_logs = running.agent.data.local_logs
        assert local_logs.storage is not None
        assert local_logs.storage.manager.offline_directories == []
        assert 0 < local_logs.tail_cache.dropped_files < PARTITIONS
        assert await _values(running, partition=PARTITIONS - 1) == ["x"]
        page = await running.read("local", 0)
        assert [record["value"] for record in page["records"]] == ["before", "after"]


async def test_the_tail_cache_leaves_memory_maps_to_logs_with_records_of_their_own(
    agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each segment has two, and Linux allows a process 65,530. A map that fails takes the disk offline."""
    limit = tmp_path / "max_map_count"
    limit.write_text("10000")
    monkeypatch.setattr("agent.runtime.process_resources._MAX_MAPS", limit)

    class ScarceMapping(RealMapping):
        """A map of a system that allows few."""

        def __init__(self, descriptor: int, size: int) -> None:
            if mapped_file_count() >= int(limit.read_text()):
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            super().__init__(descriptor, size)

    monkeypatch.setattr("local_tier.files.file_system.RealMapping", ScarceMapping)
    listeners = (KafkaListener(port=0),)
    async with agents.running(
        local_directories=(tmp_path / "disk",), kafka_listeners=listeners, **NO_MEMORY
    ) as running:
        await running.create_topic("t", PARTITIONS)
        await running.create_topic("local", 1, storage_mode="local")
        await running.produce("local", {"value": "before"})
        limit.write_text(str((mapped_file_count() + 30) * 4 // 3))
        for partition in range(PARTITIONS):
            await running.produce("t", {"value": "x"}, partition=partition)
            await running.agent.data.local_logs.tail_cache.idle()
        await running.produce("local", {"value": "after"})
        local_logs = running.agent.data.local_logs
        assert local_logs.storage is not None
        assert local_logs.storage.manager.offline_directories == []
        assert 0 < local_logs.tail_cache.dropped_files < PARTITIONS
        page = await running.read("local", 0)
        assert [record["value"] for record in page["records"]] == ["before", "after"]


async def test_the_tail_cache_of_a_deleted_topic_is_deleted(
    agents: Agents, catalog: Catalog, tmp_path: Path
) -> None:
    async with agents.running(local_directories=(tmp_path / "disk",), **NO_MEMORY) as running:
        await running.create_topic("t", 1)
        await _produce(running, 0, 2)
        catalog.topics.delete("t")
        await running.create_topic("t", 1)
        storage = running.agent.data.local_logs.storage
        assert storage is not None
        storage.sync_topics()
        assert storage.manager.logs() == []
        await _produce(running, 7, 1)
        assert await _values(running) == ["7"]


async def test_a_disk_that_hangs_holds_up_no_read_of_what_objects_have(
    agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More reads meet it than it has threads and places for calls that wait."""
    disk = HangingDisk("read")
    files = SteppedFileSystem(RealFileSystem(), disk)
    monkeypatch.setattr("agent.local_topics.disks.storage.RealFileSystem", lambda: files)
    monkeypatch.setattr("agent.local_topics.reader._LOOKUP_SECONDS", 0.01)
    monkeypatch.setattr("agent.read.read_path._MAX_DISK_SECONDS", 0.01)
    changes = {"disk_threads": 1, "max_waiting_calls": 4}
    async with agents.running(local_directories=(tmp_path / "disk",), **changes, **NO_MEMORY) as running:
        await running.create_topic("t", 1)
        await _produce(running, 0, 3)
        disk.hang()
        try:
            for _ in range(3):
                assert await _values(running) == ["0", "1", "2"]
                page = await running.read("t", timestamp=1001)
                assert [record["value"] for record in page["records"]] == ["1", "2"]
            assert disk.waiting == 1
        finally:
            disk.work()
        hits = running.agent.data.local_logs.reader.tail_cache_hits
        while running.agent.data.local_logs.reader.tail_cache_hits == hits:
            assert await _values(running) == ["0", "1", "2"]


async def test_a_fetch_waits_for_a_tail_cache_that_hangs_only_for_a_part_of_its_time(
    agents: Agents, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = HangingDisk("read")
    files = SteppedFileSystem(RealFileSystem(), disk)
    monkeypatch.setattr("agent.local_topics.disks.storage.RealFileSystem", lambda: files)
    for limit in ("agent.read.read_path._MAX_DISK_SECONDS", "agent.local_topics.reader._LOOKUP_SECONDS"):
        monkeypatch.setattr(limit, 1_000.0)
    async with agents.running(local_directories=(tmp_path / "disk",), **NO_MEMORY) as running:
        await running.create_topic("t", 2)
        for partition in (0, 1):
            await running.produce("t", {"value": "0"}, partition=partition)
        await running.agent.data.local_logs.tail_cache.idle()
        topic = catalog.topics.get("t")
        wanted = [
            PartitionFetch(topic=topic, partition=partition, offset=0, max_bytes=1_000)
            for partition in (0, 1)
        ]
        disk.hang()
        try:
            read_path = running.agent.data.read_path
            fetch = read_path.fetch(wanted, max_bytes=2_000, max_wait_ms=500)
            found = await asyncio.wait_for(fetch, 120)
            assert [result.next_offset for result in found] == [1, 1]
            assert disk.waiting == 1
        finally:
            disk.work()
