"""Produce and read records through the HTTP API of a running agent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from agent.listeners import KafkaListener
from core.clock import ManualClock
from core.ids import SeededIds
from object_store.accounting import RequestKind
from tests.catalog.scene import advance_log_start

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from catalog.open import Catalog
    from tests.agent.running_agents import Agents, RunningAgent

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


async def test_produced_records_are_read_back(agents: Agents) -> None:
    """This takes one PUT and no GET: the records are still in the agent's memory."""
    async with agents.running() as running:
        await running.create_topic("t")
        response = await running.produce(
            "t", {"key": "a", "value": "1", "timestamp": 1000}, {"key": "b", "value": None, "timestamp": 2000}
        )
        assert response == {
            "accepted": 2,
            "rejected": 0,
            "results": [
                {"partition": 0, "offset": 0, "timestamp": 1000},
                {"partition": 0, "offset": 1, "timestamp": 2000},
            ],
        }
        assert await running.read("t", offset=0) == {
            "topic": "t",
            "partition": 0,
            "log_start_offset": 0,
            "high_watermark": 2,
            "next_offset": 2,
            "records": [
                {"offset": 0, "timestamp": 1000, "key": "a", "value": "1", "headers": []},
                {"offset": 1, "timestamp": 2000, "key": "b", "value": None, "headers": []},
            ],
        }
        assert (agents.requests(RequestKind.PUT), agents.requests(RequestKind.GET)) == (1, 0)


async def test_each_record_of_a_response_is_one_line(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        await running.produce("t", {"key": "Köln", "value": '{"a":1}', "timestamp": 5})
        response = await running.http.get("/v1/topics/t/partitions/0/records")
        assert response.text.splitlines()[1] == (
            '{"offset":0,"timestamp":5,"key":"Köln","value":"{\\"a\\":1}","headers":[]}'
        )


async def test_bytes_that_are_not_utf8_are_base64_and_can_be_produced_as_read(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        raw = base64.b64encode(b"\xff\x00\xfe").decode()
        record = {
            "key": raw,
            "key_encoding": "base64",
            "value": raw,
            "value_encoding": "base64",
            "headers": [
                {"key": "h", "value": raw, "value_encoding": "base64"},
                {"key": "none", "value": None},
            ],
            "timestamp": 7,
        }
        await running.produce("t", record)
        (first,) = (await running.read("t"))["records"]
        assert first == {"offset": 0, **record}
        await running.produce("t", first)
        (_, second) = (await running.read("t"))["records"]
        assert second == {**first, "offset": 1}


async def test_another_agent_reads_random_records_from_the_object_store(agents: Agents) -> None:
    """The records are compressed and in several files, and the second agent has none of them in memory."""
    random = SeededIds(5, ManualClock())
    records: list[dict[str, Any]] = [
        {
            "value": base64.b64encode(random.random_bytes(index % 97)).decode(),
            "value_encoding": "base64",
            "timestamp": index,
        }
        for index in range(500)
    ]
    async with agents.running(flush_bytes=2000) as running:
        await running.create_topic("t", 3, compression_type="lz4")
        for start in range(0, 500, 50):
            await running.produce("t", *records[start : start + 50])
    async with agents.running() as running:
        seen: dict[int, str] = {}
        for partition in range(3):
            page = await running.read("t", partition, max_records=1000)
            assert page["next_offset"] == page["high_watermark"] == len(page["records"])
            for record in page["records"]:
                text = record["value"]
                is_base64 = record.get("value_encoding") == "base64"
                seen[record["timestamp"]] = text if is_base64 else base64.b64encode(text.encode()).decode()
        assert seen == {record["timestamp"]: record["value"] for record in records}


async def test_the_partitioner_is_kafkas_default(agents: Agents) -> None:
    """The expected hashes are those of Kafka's UtilsTest for murmur2."""
    known = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    async with agents.running() as running:
        await running.create_topic("t", 7)
        response = await running.produce("t", *({"key": key} for key in known))
        partitions = [result["partition"] for result in response["results"]]
        assert partitions == [(number & 0x7FFFFFFF) % 7 for number in known.values()]


async def test_records_without_a_key_share_a_partition_unless_path_or_record_name_one(
    agents: Agents,
) -> None:
    async with agents.running() as running:
        await running.create_topic("t", 16)
        sticky = await running.produce("t", *({"value": str(n)} for n in range(20)))
        assert len({result["partition"] for result in sticky["results"]}) == 1
        explicit = await running.produce("t", {"key": "k"}, {"key": "k", "partition": 4}, partition=9)
        assert [result["partition"] for result in explicit["results"]] == [9, 4]


async def test_a_compacted_topic_rejects_only_the_records_without_a_key(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t", 1, cleanup_policy="compact")
        response = await running.produce("t", {"key": "a"}, {"value": "no key"}, {"key": "b"})
        assert (response["accepted"], response["rejected"]) == (2, 1)
        assert [result.get("offset") for result in response["results"]] == [0, None, 1]
        assert response["results"][1]["error"]["code"] == "missing_key"
        assert "'t' is compacted" in response["results"][1]["error"]["message"]


async def test_the_status_is_422_if_all_records_are_rejected(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t", 1, cleanup_policy="compact")
        response = await running.http.post("/v1/topics/t/records", json={"records": [{"value": "x"}]})
        body = response.json()
        assert (response.status_code, body["accepted"], body["rejected"]) == (422, 0, 1)
        assert body["error"]["message"].startswith("no record was appended; record 0: topic 't' is compacted")
        assert agents.requests(RequestKind.PUT) == 0


async def test_each_record_has_its_own_error(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t", 2, max_message_bytes="1000", compression_type="uncompressed")
        response = await running.produce(
            "t",
            {"value": "x" * 2000},
            {"value": "fits", "partition": 1},
            {"value": "x", "partition": 2},
            {"value": "not base64!", "value_encoding": "base64"},
            {"value": "x", "timestamp": 2**62},
        )
        codes = [result.get("error", {}).get("code") for result in response["results"]]
        assert codes == [
            "record_too_large",
            None,
            "unknown_partition",
            "invalid_base64",
            "invalid_timestamp",
        ]
        assert response["results"][1]["offset"] == 0


async def test_a_request_without_records_succeeds(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        assert await running.produce("t") == {"accepted": 0, "rejected": 0, "results": []}


async def test_log_append_time_replaces_the_timestamps_of_records(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t", 1, message_timestamp_type="LogAppendTime")
        response = await running.produce("t", {"value": "x", "timestamp": 1}, {"value": "y", "timestamp": 2})
        times = {result["timestamp"] for result in response["results"]}
        page = await running.read("t")
        assert {record["timestamp"] for record in page["records"]} == times
        assert min(times) > 1_600_000_000_000


async def test_consecutive_pages_have_no_gap_and_no_duplicate(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        for start in (0, 7, 14):
            await running.produce("t", *({"value": str(n)} for n in range(start, start + 7)))
        for limits in ({"max_records": 4}, {"max_bytes": 1}, {"max_bytes": 300}, {}):
            offset, seen = 0, []
            while True:
                page = await running.read("t", offset=offset, **limits)
                seen += [record["value"] for record in page["records"]]
                if page["next_offset"] == page["high_watermark"]:
                    break
                assert page["next_offset"] > offset
                offset = page["next_offset"]
            assert seen == [str(n) for n in range(21)]


async def test_a_read_can_start_inside_a_batch(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        await running.produce("t", *({"value": str(n)} for n in range(10)))
        page = await running.read("t", offset=6)
        assert [record["offset"] for record in page["records"]] == [6, 7, 8, 9]


async def test_a_read_at_the_high_watermark_is_empty_and_beyond_it_fails(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        await running.produce("t", {"value": "x"})
        page = await running.read("t", offset=1)
        assert (page["records"], page["next_offset"]) == ([], 1)
        response = await running.http.get("/v1/topics/t/partitions/0/records?offset=2")
        assert (response.status_code, response.json()) == (
            416,
            {
                "error": {
                    "code": "offset_out_of_range",
                    "message": "offset 2 of t-0 is out of range 0 to 1",
                    "remedy": "read from an offset of at least 0 and at most 1",
                    "log_start_offset": 0,
                    "high_watermark": 1,
                }
            },
        )


async def test_a_read_by_timestamp_starts_at_the_first_record_at_or_after_it(agents: Agents) -> None:
    """First means the lowest offset, also if timestamps are not in order, and across files."""
    times = [100, 300, 200, 250, 400, 50, 500]
    async with agents.running() as running:
        await running.create_topic("t")
        for start in (0, 2, 4):
            await running.produce("t", *({"timestamp": time} for time in times[start : start + 2]))
        await running.produce("t", {"timestamp": times[6]})
        for wanted in (0, 100, 101, 260, 301, 400, 401, 500, 501):
            page = await running.read("t", timestamp=wanted)
            first = next((offset for offset, time in enumerate(times) if time >= wanted), None)
            found = page["records"][0]["offset"] if page["records"] else None
            assert (wanted, found) == (wanted, first)
        assert (await running.read("t", timestamp=501))["next_offset"] == 7


_INVALID_READS = [
    ("/v1/topics/none/partitions/0/records", 404, "topic_not_found"),
    ("/v1/topics/t/partitions/1/records", 404, "unknown_partition"),
    ("/v1/topics/t/partitions/-1/records", 422, "invalid_request"),
    ("/v1/topics/t/partitions/0/records?offset=-1", 422, "invalid_request"),
    ("/v1/topics/t/partitions/0/records?offset=x", 422, "invalid_request"),
    ("/v1/topics/t/partitions/0/records?offset=0&timestamp=0", 422, "invalid_input"),
    ("/v1/topics/t/partitions/0/records?offset=99999999999999999999", 422, "invalid_request"),
    ("/v1/topics/t/partitions/0/records?max_records=0", 422, "invalid_request"),
    ("/nowhere", 404, "path_not_found"),
]


async def test_a_read_by_timestamp_starts_at_or_after_the_log_start_offset(
    agents: Agents, catalog: Catalog
) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        times = (100, 900, 100, 100, 500)
        await running.produce("t", *({"value": "v", "timestamp": time} for time in times))
        await running.produce("t", {"value": "v", "timestamp": 900})
        advance_log_start(catalog.retention, catalog.topics.get("t").topic_id, 0, 2)
        found = [await running.read("t", timestamp=time) for time in (1, 200, 600)]
        assert [response["records"][0]["offset"] for response in found] == [2, 4, 5]
        await _until(lambda: running.agent.data.read_path.budget.used == 0)


async def test_an_invalid_read_has_a_status_and_an_error_code(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        for path, status, code in _INVALID_READS:
            response = await running.http.get(path)
            assert (path, response.status_code, response.json()["error"]["code"]) == (path, status, code)


_JSON = {"content-type": "application/json"}
_INVALID_BODIES: list[tuple[bytes, dict[str, str], int, str]] = [
    (b'{"records":[]}', {"content-type": "text/plain"}, 415, "unsupported_media_type"),
    (b'{"records":[]}', {}, 415, "unsupported_media_type"),
    (b'{"records":[]}', {**_JSON, "content-encoding": "gzip"}, 415, "unsupported_media_type"),
    (b"x" * 2000, _JSON, 413, "payload_too_large"),
    (b"{", _JSON, 422, "invalid_body"),
    (b"", _JSON, 422, "invalid_body"),
    (b"\xff\xfe", _JSON, 422, "invalid_body"),
    (b"[]", {"content-type": "application/json; charset=utf-8"}, 422, "invalid_body"),
    (b'{"records":[{"kee":"x"}]}', _JSON, 422, "invalid_body"),
    (b'{"records":[{"key":1}]}', _JSON, 422, "invalid_body"),
    (b'{"records":[{"key":"\\ud800"}]}', _JSON, 422, "invalid_body"),
    (b'{"records":[{"timestamp":1e400}]}', _JSON, 422, "invalid_body"),
    (b"[" * 900, _JSON, 422, "invalid_body"),
]


async def test_an_invalid_body_has_a_status_and_an_error_code(agents: Agents) -> None:
    async with agents.running(max_request_bytes=1000) as running:
        await running.create_topic("t")
        for content, headers, status, code in _INVALID_BODIES:
            response = await running.http.post("/v1/topics/t/records", content=content, headers=headers)
            assert (content, response.status_code, response.json()["error"]["code"]) == (
                content,
                status,
                code,
            )
        assert agents.requests(RequestKind.PUT) == 0
        await _until(lambda: running.agent.resources.request_budget.used == 0)


async def test_a_body_without_content_length_is_bounded(agents: Agents) -> None:
    async def endless() -> Any:  # noqa: ANN401  # an asynchronous generator
        for _ in range(100):
            yield b" " * 100

    async with agents.running(max_request_bytes=1000) as running:
        await running.create_topic("t")
        response = await running.http.post(
            "/v1/topics/t/records", content=endless(), headers={"content-type": "application/json"}
        )
        assert response.status_code == 413
        await _until(lambda: running.agent.resources.request_budget.used == 0)


async def test_a_full_write_buffer_is_503_with_retry_after(agents: Agents) -> None:
    async with agents.running(max_buffered_bytes=1000, max_request_bytes=1000, flush_bytes=500) as running:
        await running.create_topic("t", 1, compression_type="uncompressed")
        running.agent.data.write_path.budget.reserve(990)
        response = await running.http.post("/v1/topics/t/records", json={"records": [{"value": "x"}]})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "busy")
        assert int(response.headers["retry-after"]) >= 1
        running.agent.data.write_path.budget.release(990)
        assert (await running.produce("t", {"value": "x"}))["accepted"] == 1


async def test_a_body_that_does_not_arrive_times_out(agents: Agents, catalog: Catalog) -> None:
    catalog.topics.create("t", 1)  # not over HTTP: its body could time out on a busy machine
    async with agents.running(body_timeout_ms=20) as running:
        url = running.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(
            b"POST /v1/topics/t/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b'content-length: 100\r\n\r\n{"records":'
        )
        assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()
        await writer.wait_closed()
        await _until(lambda: running.agent.resources.request_budget.used == 0)


async def test_a_read_without_memory_for_fetches_is_503(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        await running.produce("t", {"value": "x"})
        budget = running.agent.data.read_path.budget
        with budget.reserving(budget.limit):
            response = await running.http.get("/v1/topics/t/partitions/0/records")
            assert (response.status_code, response.json()["error"]["code"]) == (503, "busy")
        assert len((await running.read("t"))["records"]) == 1
        await _until(lambda: budget.used == 0)


async def test_a_read_takes_a_share_of_the_free_memory(agents: Agents) -> None:
    """With little free memory, a page has fewer records than `max_bytes` allows. The reader goes on."""
    mib = 1 << 20
    async with agents.running(max_fetch_bytes=2 * mib, max_fetches_bytes=4 * mib) as running:
        await running.create_topic("t")
        for _ in range(12):
            await running.produce("t", {"value": "x" * 100_000})
        budget = running.agent.data.read_path.budget
        offset = 0
        with budget.reserving(3 * mib):
            while offset < 12:
                path = f"/v1/topics/t/partitions/0/records?max_bytes={2 * mib}&offset={offset}"
                response = await running.http.get(path)
                assert response.status_code == 200
                assert len(response.json()["records"]) < 3
                assert response.json()["next_offset"] > offset
                offset = response.json()["next_offset"]
        assert len((await running.read("t", max_bytes=2 * mib))["records"]) > 3
        await _until(lambda: budget.used == 0)


async def test_records_are_reserved_while_they_wait_for_a_thread(agents: Agents, tmp_path: Path) -> None:
    """Control batches are dropped in a pool of threads, which may be busy."""
    disks, listeners = (tmp_path / "disk",), (KafkaListener(port=0),)
    async with agents.running(
        local_directories=disks, kafka_listeners=listeners, rendering_threads=1
    ) as running:
        await running.create_topic("t", storage_mode="local")
        await running.produce("t", {"value": random.Random(1).randbytes(200_000).hex()})
        pool, budget = running.agent.resources.pools.rendering, running.agent.data.read_path.budget
        gate = threading.Event()
        busy = asyncio.ensure_future(pool.run(gate.wait))
        await asyncio.sleep(0)
        reading = asyncio.ensure_future(running.read("t"))
        try:
            await _until(lambda: pool.pending == 2)
            assert budget.used >= 100_000
        finally:
            gate.set()
        await busy
        assert len((await reading)["records"]) == 1
        await _until(lambda: budget.used == 0)


async def test_readers_that_wait_for_a_thread_reserve_only_what_they_hold(agents: Agents) -> None:
    """A page reserves its lines, not the largest size that it may have."""
    async with agents.running(rendering_threads=1) as running:
        await running.create_topic("t")
        await running.produce("t", {"value": "x"})
        pool, budget = running.agent.resources.pools.rendering, running.agent.data.read_path.budget
        gate = threading.Event()
        busy = asyncio.ensure_future(pool.run(gate.wait))
        await asyncio.sleep(0)
        reading = [asyncio.ensure_future(running.read("t")) for _ in range(10)]
        try:
            await _until(lambda: pool.pending == 11)
            assert budget.used < 1 << 20
        finally:
            gate.set()
        await busy
        assert [len(each["records"]) for each in await asyncio.gather(*reading)] == [1] * 10
        await _until(lambda: budget.used == 0)


async def test_rendered_lines_are_reserved_while_the_next_ones_wait(agents: Agents) -> None:
    """Readers take turns in the pool, so many pages may be rendered in part."""
    async with agents.running(rendering_threads=1) as running:
        await running.create_topic("t")
        for _ in range(12):
            await running.produce("t", {"value": "x" * 100_000})
        pool, budget = running.agent.resources.pools.rendering, running.agent.data.read_path.budget
        gates = [threading.Event(), threading.Event()]
        busy = [asyncio.ensure_future(pool.run(gates[0].wait))]
        await asyncio.sleep(0)
        reading = asyncio.ensure_future(running.read("t", max_bytes=2 << 20))
        try:
            await _until(lambda: pool.pending == 2)
            assert budget.used < 100_000  # the records are compressed
            busy.append(asyncio.ensure_future(pool.run(gates[1].wait)))
            await asyncio.sleep(0)
            gates[0].set()
            await busy[0]
            await _until(lambda: budget.used >= 200_000)
            assert pool.pending == 2
        finally:
            for each in gates:
                each.set()
        await asyncio.gather(*busy)
        assert len((await reading)["records"]) == 12
        await _until(lambda: budget.used == 0)


async def test_a_page_that_no_longer_fits_is_503_as_soon_as_it_is_known(agents: Agents) -> None:
    """It holds no memory until its next turn, for which it would wait."""
    async with agents.running(rendering_threads=1) as running:
        await running.create_topic("t")
        await running.produce("t", *[{"value": "x" * 100_000}] * 12)
        pool, budget = running.agent.resources.pools.rendering, running.agent.data.read_path.budget
        gates = [threading.Event(), threading.Event()]
        busy = [asyncio.ensure_future(pool.run(gates[0].wait))]
        await asyncio.sleep(0)
        reading = asyncio.ensure_future(running.http.get("/v1/topics/t/partitions/0/records"))
        try:
            await _until(lambda: pool.pending == 2)
            busy.append(asyncio.ensure_future(pool.run(gates[1].wait)))
            await asyncio.sleep(0)
            with budget.reserving(budget.free):
                gates[0].set()
                assert (await reading).status_code == 503
        finally:
            for each in gates:
                each.set()
        await asyncio.gather(*busy)
        await _until(lambda: budget.used == 0)


async def _connect_without_reading(running: RunningAgent, path: str) -> socket.socket:
    host, port = running.http.base_url.host, running.http.base_url.port
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(reader, (host, port))
    await loop.sock_sendall(reader, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return reader


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # other tasks make the condition true
        await asyncio.sleep(0.005)


async def test_a_response_reserves_memory_until_the_client_has_read_it(agents: Agents) -> None:
    mib = 1 << 20
    limits = {"max_fetch_bytes": 16 * mib, "max_fetches_bytes": 24 * mib}
    async with agents.running(**limits) as running:
        await running.create_topic("t", max_message_bytes=str(16 * mib))
        await running.produce("t", {"value": "x" * 15 * mib})
        budget = running.agent.data.read_path.budget
        path = "/v1/topics/t/partitions/0/records"
        with contextlib.closing(await _connect_without_reading(running, path)):
            await _until(lambda: bool(budget.used) and not running.agent.resources.pools.rendering.pending)
            rejected = await running.http.get(path)
            assert rejected.status_code == 503
            assert budget.used > 15 * mib
        await _until(lambda: budget.used == 0)
        assert (await running.http.get(path)).status_code == 200
        await _until(lambda: budget.used == 0)


async def test_a_client_that_does_not_read_is_disconnected(agents: Agents) -> None:
    mib = 1 << 20
    async with agents.running(write_timeout_ms=50) as running:
        await running.create_topic("t", max_message_bytes=str(16 * mib))
        await running.produce("t", {"value": "x" * 15 * mib})
        budget = running.agent.data.read_path.budget
        path = "/v1/topics/t/partitions/0/records"
        with contextlib.closing(await _connect_without_reading(running, path)):
            await _until(lambda: budget.used > 0)
            await _until(lambda: budget.used == 0)


async def test_producing_does_not_need_the_threads_of_reads(agents: Agents) -> None:
    """It succeeds while every rendering thread is busy."""
    async with agents.running() as running:
        await running.create_topic("t")
        gate = threading.Event()
        pools = running.agent.resources.pools
        waits = [asyncio.ensure_future(pools.rendering.run(gate.wait)) for _ in range(4)]
        try:
            assert (await running.produce("t", {"value": "1"}))["accepted"] == 1
        finally:
            gate.set()
            await asyncio.gather(*waits)
        assert len((await running.read("t"))["records"]) == 1
