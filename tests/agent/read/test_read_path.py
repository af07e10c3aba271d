"""The read path over real objects: requests of a read, compacted files, waiting, and replaced extents."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from agent.read.fetch_plan import Cursor, PartitionFetch
from object_store.accounting import Purpose, RequestKind
from tests.agent.small_compaction import compact
from tests.catalog.scene import advance_log_start

if TYPE_CHECKING:
    from catalog.open import Catalog
    from core.ids import Ids
    from object_format.record_batch.records import Record
    from tests.agent.faulty_store import FaultyStore
    from tests.agent.running_agents import Agents, RunningAgent

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


async def _all(
    running: RunningAgent, topic: str, partition: int = 0, offset: int = 0, **query: int
) -> list[Any]:
    records: list[Any] = []
    while True:
        page = await running.read(topic, partition, offset=offset, **query)
        records += page["records"]
        if page["next_offset"] >= page["high_watermark"]:
            return records
        assert page["next_offset"] > offset
        offset = page["next_offset"]


async def _produced(
    agents: Agents, catalog: Catalog, count: int, per_request: int = 1, **config: str
) -> None:
    """Create a topic t with one partition; values are offsets, keys are offsets modulo 10."""
    async with agents.running() as running:
        await running.create_topic("t", 1, **config)
        for start in range(0, count, per_request):
            await running.produce(
                "t",
                *(
                    {"key": str(n % 10), "value": str(n), "timestamp": 1000 + n}
                    for n in range(start, start + per_request)
                ),
            )
    assert catalog.topics.get("t").partition_count == 1


def _is_among(offsets: set[int], record: Record) -> bool:
    return record.offset in offsets


async def test_sections_of_one_file_are_read_by_one_get(agents: Agents) -> None:
    async with agents.running(flush_interval_ms=500) as running:
        await running.create_topic("t", 4)
        await asyncio.gather(*(running.produce("t", {"value": str(n)}, partition=n) for n in range(4)))
        await running.produce("t", {"value": "x"}, partition=0)
    async with agents.running() as running:
        for partition in range(4):
            assert (await running.read("t", partition))["records"][0]["value"] == str(partition)
        assert agents.requests(RequestKind.GET) <= 5
    async with agents.running() as running:
        before = agents.requests(RequestKind.GET)
        await running.read("t", 0)
        assert agents.requests(RequestKind.GET) - before == 2  # partition 0 is in two files


async def test_a_repeated_read_causes_no_get(agents: Agents, catalog: Catalog) -> None:
    await _produced(agents, catalog, 5)
    async with agents.running() as running:
        first = await _all(running, "t")
        gets = agents.requests(RequestKind.GET)
        assert await _all(running, "t", max_records=2) == first
        assert agents.requests(RequestKind.GET) == gets == 5


async def test_readers_of_the_same_cold_data_share_the_gets(agents: Agents, catalog: Catalog) -> None:
    await _produced(agents, catalog, 3)
    async with agents.running() as running:
        pages = await asyncio.gather(*(_all(running, "t") for _ in range(8)))
        assert all(page == pages[0] for page in pages)
        assert agents.requests(RequestKind.GET) == 3


async def test_offsets_in_a_hole_continue_at_the_next_record(
    agents: Agents, catalog: Catalog, store: FaultyStore, ids: Ids
) -> None:
    await _produced(agents, catalog, 60, 6, cleanup_policy="compact")
    compact(
        catalog, store, ids, catalog.topics.get("t"), keep=lambda record: record.offset in {3, 17, 18, 41}
    )
    async with agents.running() as running:
        assert [record["offset"] for record in await _all(running, "t")] == [3, 17, 18, 41]
        for start, expected in ((0, 3), (3, 3), (4, 17), (19, 41), (41, 41)):
            page = await running.read("t", offset=start, max_records=1)
            (record,) = page["records"]
            assert (record["offset"], record["value"], record["timestamp"]) == (
                expected,
                str(expected),
                1000 + expected,
            )
        tail = await running.read("t", offset=42)
        assert (tail["records"], tail["next_offset"], tail["high_watermark"]) == ([], 60, 60)
        timed = await running.read("t", timestamp=1004)
        assert timed["records"][0]["offset"] == 17


async def test_the_tail_of_a_compacted_topic_shows_no_superseded_record(
    agents: Agents, catalog: Catalog, store: FaultyStore, ids: Ids
) -> None:
    """The tail in memory has batches that compaction has replaced; they belong to no extent any more."""
    expected: list[str] = []
    async with agents.running() as running:
        await running.create_topic("t", 1, cleanup_policy="compact")
        for number in range(12):
            await running.produce(
                "t", {"key": str(number % 3), "value": str(number)}, {"key": "", "value": "x"}
            )
            expected += [str(number), "x"]
            if number % 4 == 3:
                newest = {2 * number + 1, *(2 * each for each in range(number - 2, number + 1))}
                topic = catalog.topics.get("t")
                compact(catalog, store, ids, topic, keep=partial(_is_among, newest))
                expected = [str(number - 2), str(number - 1), str(number), "x"]
            gets = agents.requests(RequestKind.GET)
            found = await _all(running, "t")
            assert [record["value"] for record in found] == expected
            assert await _all(running, "t", max_wait_ms=100) == found
            offsets = [record["offset"] for record in found]
            assert offsets == sorted(set(offsets))
            if number < 3:
                assert agents.requests(RequestKind.GET) == gets


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20])
async def test_memory_has_no_record_that_was_removed_while_the_topic_was_compacted(
    agents: Agents, catalog: Catalog, store: FaultyStore, ids: Ids, tail_bytes: int
) -> None:
    """The policy is delete again, so memory is used, and it has what was read or written before."""
    async with agents.running(tail_bytes=tail_bytes, topic_cache_ms=1) as running:
        await running.create_topic("t", 1)
        await running.produce("t", *({"key": "k", "value": str(number)} for number in range(4)))
        assert len(await _all(running, "t")) == 4
        catalog.topics.alter_config("t", {"cleanup.policy": "compact"})
        compact(catalog, store, ids, catalog.topics.get("t"), keep=partial(_is_among, {3}))
        catalog.topics.alter_config("t", {"cleanup.policy": "delete"})
        running.agent.data.read_path._log.clear()
        for _ in range(2):
            assert [record["offset"] for record in await _all(running, "t")] == [3]
        await running.produce("t", {"key": "k", "value": "4"})
        assert [record["offset"] for record in await _all(running, "t")] == [3, 4]


async def test_the_tail_serves_an_extent_only_up_to_its_end(agents: Agents, catalog: Catalog) -> None:
    """A compaction may have replaced the following extent of the same file."""
    async with agents.running(flush_interval_ms=500) as running:
        await running.create_topic("t", 1, cleanup_policy="compact")
        await asyncio.gather(*(running.produce("t", {"key": "k", "value": "v"}) for _ in range(2)))
        topic = catalog.topics.get("t")
        (extent,) = catalog.extents.from_offset(topic.topic_id, 0, 0)
        cursor = Cursor.at(PartitionFetch(topic=topic, partition=0, offset=0, max_bytes=1 << 20))
        cursor.extents, cursor.limit = [extent._replace(last_offset=0)], 1 << 20
        assert running.agent.data.read_path._serve_from_files(cursor)
        assert cursor.served.next_offset == 1


async def test_a_read_by_time_continues_after_an_extent_that_has_no_such_record_left(
    agents: Agents, catalog: Catalog
) -> None:
    """The only late record of the first candidate lies below the log start offset.

    Extents without late records are found one by one here, and are not read.
    """
    async with agents.running(flush_interval_ms=1, max_fetch_extents=1) as running:
        await running.create_topic("t", 1)
        topic_id = catalog.topics.get("t").topic_id
        files = [[9_000, 1_000], [2_000], [8_500, 9_000], [9_500]]
        for file in files:
            await running.produce("t", *({"key": "k", "value": "v", "timestamp": time} for time in file))
        for log_start, timestamp, expected in (
            (0, 5_000, 0),
            (1, 5_000, 3),
            (1, 8_501, 4),
            (1, 9_000, 4),
            (1, 9_001, 5),
            (5, 9_000, 5),
            (1, 9_501, 6),
        ):
            advance_log_start(catalog.retention, topic_id, 0, log_start)
            page = await running.read("t", timestamp=timestamp, max_records=1)
            assert [record["offset"] for record in page["records"]] == [expected][: expected < 6]
            assert page["next_offset"] == min(expected + 1, 6)
        assert agents.requests(RequestKind.GET) == 3


async def test_a_log_without_records_is_skipped(
    agents: Agents, catalog: Catalog, store: FaultyStore, ids: Ids
) -> None:
    await _produced(agents, catalog, 6, 3, cleanup_policy="compact")
    compact(catalog, store, ids, catalog.topics.get("t"), keep=lambda _: False)
    async with agents.running() as running:
        assert await _all(running, "t") == []
        await running.produce("t", {"key": "new"})
        assert [record["offset"] for record in await _all(running, "t")] == [6]
        assert (await running.read("t", timestamp=0))["records"][0]["offset"] == 6


async def test_a_large_section_is_read_through_its_index(
    agents: Agents, catalog: Catalog, store: FaultyStore, ids: Ids
) -> None:
    """A read from its middle reads the index and one range of the section."""
    await _produced(agents, catalog, 600, 100, cleanup_policy="compact", compression_type="uncompressed")
    topic = catalog.topics.get("t")
    compact(catalog, store, ids, topic, keep=lambda record: record.offset < 100 or record.offset % 3 == 0)
    (extent,) = catalog.extents.from_offset(topic.topic_id, 0, 0)
    async with agents.running(index_threshold_bytes=1, default_fetch_bytes=1000) as running:
        before = store.counts.snapshot()
        page = await running.read("t", offset=300)
        read = (store.counts.snapshot() - before).of(RequestKind.GET, Purpose.FETCH)
        assert page["records"][0]["offset"] == 300
        assert read.requests == 2
        assert read.bytes_in < extent.length / 4
        expected = [n for n in range(600) if n < 100 or n % 3 == 0]
        assert [record["offset"] for record in await _all(running, "t", max_bytes=700)] == expected
        timed = await running.read("t", timestamp=1000 + 401, max_records=1)
        assert timed["records"][0]["offset"] == 402


async def test_a_hole_longer_than_one_read_is_skipped(
    agents: Agents, catalog: Catalog, store: FaultyStore, ids: Ids
) -> None:
    await _produced(agents, catalog, 300, 100, cleanup_policy="compact", compression_type="uncompressed")
    compact(
        catalog,
        store,
        ids,
        catalog.topics.get("t"),
        keep=lambda record: record.offset < 100 or record.offset > 290,
        block_target=200,
    )
    async with agents.running(index_threshold_bytes=1) as running:
        page = await running.read("t", offset=100, max_bytes=1)
        assert page["records"][0]["offset"] == 291


async def test_extents_of_deleted_objects_are_looked_up_again(
    agents: Agents, catalog: Catalog, store: FaultyStore, ids: Ids
) -> None:
    """An extent is replaced and its object deleted between its lookup and its read."""
    await _produced(agents, catalog, 20, 10, cleanup_policy="compact")
    topic = catalog.topics.get("t")
    old = [extent.object_name for extent in catalog.extents.from_offset(topic.topic_id, 0, 0)]

    def replace_extents() -> None:
        compact(catalog, store, ids, topic, keep=lambda record: record.offset >= 10)
        store.delete(old, purpose=Purpose.GC)

    async with agents.running() as running:
        store.before_read = replace_extents
        assert [record["offset"] for record in await _all(running, "t")] == list(range(10, 20))


async def test_a_missing_object_of_a_live_extent_is_a_clear_error(
    agents: Agents, catalog: Catalog, store: FaultyStore
) -> None:
    await _produced(agents, catalog, 1)
    (extent,) = catalog.extents.from_offset(catalog.topics.get("t").topic_id, 0, 0)
    store.delete([extent.object_name], purpose=Purpose.GC)
    async with agents.running() as running:
        response = await running.http.get("/v1/topics/t/partitions/0/records")
        assert (response.status_code, response.json()["error"]["code"]) == (503, "read_failed")


async def test_damaged_bytes_are_a_clear_error(agents: Agents, catalog: Catalog, store: FaultyStore) -> None:
    await _produced(agents, catalog, 1)
    (extent,) = catalog.extents.from_offset(catalog.topics.get("t").topic_id, 0, 0)
    body = store.read_range(extent.object_name, 0, extent.position + extent.length, purpose=Purpose.FSCK)
    body[extent.position + 40] ^= 1
    store.put(extent.object_name, [body], purpose=Purpose.FSCK)
    async with agents.running() as running:
        with capture_logs() as log:
            response = await running.http.get("/v1/topics/t/partitions/0/records")
        assert (response.status_code, response.json()["error"]["code"]) == (500, "corrupt_segment")
        assert any(extent.object_name in event.get("reason", "") for event in log)


async def test_a_long_poll_wakes_on_a_commit_of_another_agent(agents: Agents) -> None:
    """It wakes before its timeout and before its next poll."""
    async with agents.running(poll_interval_ms=60_000) as one, agents.running() as other:
        await one.create_topic("t", 2)
        waiting = asyncio.ensure_future(one.read("t", 1, offset=0, max_wait_ms=50_000))
        await _until_waiting(one)
        await other.produce("t", {"value": "elsewhere"}, partition=0)
        await other.produce("t", {"value": "here"}, partition=1)
        page = await waiting
        assert [record["value"] for record in page["records"]] == ["here"]


async def test_a_long_poll_finds_records_whose_notification_was_lost(agents: Agents) -> None:
    """A lost notification only costs time."""
    async with agents.running(poll_interval_ms=20) as one, agents.running() as other:
        await one.create_topic("t")
        one.agent.data.commit_notifier.wake = lambda partitions: None  # type: ignore[method-assign]  # noqa: ARG005  # loses every notification
        waiting = asyncio.ensure_future(one.read("t", offset=0, max_wait_ms=50_000))
        await _until_waiting(one)
        await other.produce("t", {"value": "x"})
        assert len((await waiting)["records"]) == 1


async def test_a_long_poll_times_out_without_records(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        page = await running.read("t", offset=0, max_wait_ms=5)
        assert (page["records"], page["next_offset"]) == ([], 0)


async def _until_waiting(running: RunningAgent) -> None:
    while not running.agent.data.commit_notifier.has_waiters:  # noqa: ASYNC110  # the request arrives over a socket
        await asyncio.sleep(0.001)


async def test_two_agents_write_one_log_without_gap_or_overlap(agents: Agents) -> None:
    async with agents.running() as one, agents.running() as other:
        await one.create_topic("t", 2)
        responses = await asyncio.gather(
            *(
                agent.produce("t", {"value": f"{name}-{n}"}, {"value": f"{name}-{n}'"}, partition=n % 2)
                for n in range(10)
                for name, agent in (("one", one), ("other", other))
            )
        )
        assert all(response["accepted"] == 2 for response in responses)
        for partition in range(2):
            seen_by_one = await _all(one, "t", partition)
            assert [record["offset"] for record in seen_by_one] == list(range(20))
            assert await _all(other, "t", partition) == seen_by_one


async def test_a_fetch_waits_for_disks_at_most_until_its_own_end(
    agents: Agents, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks again each time that it wakes up, and each look gets half of what is left."""
    loop = asyncio.get_running_loop()
    deadlines: list[float] = []
    async with agents.running(poll_interval_ms=10) as running:
        await running.create_topic("t", 2)
        read_path = running.agent.data.read_path
        serve = read_path._local_reader.serve

        async def note(*arguments: Any) -> None:  # noqa: ANN401  # those of `serve`
            deadlines.append(arguments[-1])
            await serve(*arguments)

        monkeypatch.setattr(read_path._local_reader, "serve", note)
        topic = catalog.topics.get("t")
        wanted = [PartitionFetch(topic=topic, partition=n, offset=0, max_bytes=1_000) for n in (0, 1)]
        await read_path.fetch(wanted, max_bytes=2_000, max_wait_ms=500)
        end = loop.time()
    assert max(deadlines) <= end
