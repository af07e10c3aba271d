"""Producing and reading through the HTTP API of a real agent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from core.clock import ManualClock
from core.ids import SeededIds
from object_store.accounting import RequestKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.open import Catalog
    from tests.agent.running_agents import Agents, RunningAgent

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


async def test_what_is_produced_is_read_back(agents: Agents) -> None:
    """With one PUT, and without a GET: the agent still has what it wrote."""
    async with agents.running() as running:
        await running.create_topic("t")
        answer = await running.produce(
            "t", {"key": "a", "value": "1", "timestamp": 1000}, {"key": "b", "value": None, "timestamp": 2000}
        )
        assert answer == {
            "accepted": 2,
            "refused": 0,
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


async def test_a_record_is_one_readable_line(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        await running.produce("t", {"key": "Köln", "value": '{"a":1}', "timestamp": 5})
        answer = await running.http.get("/v1/topics/t/partitions/0/records")
        assert answer.text.splitlines()[1] == (
            '{"offset":0,"timestamp":5,"key":"Köln","value":"{\\"a\\":1}","headers":[]}'
        )


async def test_bytes_that_are_no_text_come_back_as_base64_and_can_be_produced_as_read(agents: Agents) -> None:
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


async def test_many_random_records_come_back_from_a_cold_agent(agents: Agents) -> None:
    """Through objects and compression, in several files; nothing is left in memory by the second agent."""
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


async def test_records_are_placed_as_kafkas_default_partitioner_would(agents: Agents) -> None:
    """Expected numbers: Kafka's UtilsTest for murmur2 ("21", "foobar", …), modulo 7."""
    known = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    async with agents.running() as running:
        await running.create_topic("t", 7)
        answer = await running.produce("t", *({"key": key} for key in known))
        placed = [result["partition"] for result in answer["results"]]
        assert placed == [(number & 0x7FFFFFFF) % 7 for number in known.values()]


async def test_records_without_a_key_stay_together_and_the_path_or_the_record_may_say_where(
    agents: Agents,
) -> None:
    async with agents.running() as running:
        await running.create_topic("t", 16)
        sticky = await running.produce("t", *({"value": str(n)} for n in range(20)))
        assert len({result["partition"] for result in sticky["results"]}) == 1
        told = await running.produce("t", {"key": "k"}, {"key": "k", "partition": 4}, partition=9)
        assert [result["partition"] for result in told["results"]] == [9, 4]


async def test_a_compacted_topic_refuses_keyless_records_one_by_one(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t", 1, cleanup_policy="compact")
        answer = await running.produce("t", {"key": "a"}, {"value": "no key"}, {"key": "b"})
        assert (answer["accepted"], answer["refused"]) == (2, 1)
        assert [result.get("offset") for result in answer["results"]] == [0, None, 1]
        assert answer["results"][1]["error"]["code"] == "keyless_record"
        assert "'t' is compacted" in answer["results"][1]["error"]["message"]


async def test_when_all_are_refused_the_status_says_so(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t", 1, cleanup_policy="compact")
        answer = await running.http.post("/v1/topics/t/records", json={"records": [{"value": "x"}]})
        body = answer.json()
        assert (answer.status_code, body["accepted"], body["refused"]) == (422, 0, 1)
        assert body["error"]["message"].startswith("no record was appended; record 0: topic 't' is compacted")
        assert agents.requests(RequestKind.PUT) == 0


async def test_each_record_is_judged_by_itself(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t", 2, max_message_bytes="1000", compression_type="uncompressed")
        answer = await running.produce(
            "t",
            {"value": "x" * 2000},
            {"value": "fits", "partition": 1},
            {"value": "x", "partition": 2},
            {"value": "not base64!", "value_encoding": "base64"},
            {"value": "x", "timestamp": 2**62},
        )
        codes = [result.get("error", {}).get("code") for result in answer["results"]]
        assert codes == [
            "record_too_large",
            None,
            "unknown_partition",
            "invalid_base64",
            "invalid_timestamp",
        ]
        assert answer["results"][1]["offset"] == 0


async def test_no_records_are_no_error(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        assert await running.produce("t") == {"accepted": 0, "refused": 0, "results": []}


async def test_append_time_is_the_logs(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t", 1, message_timestamp_type="LogAppendTime")
        answer = await running.produce("t", {"value": "x", "timestamp": 1}, {"value": "y", "timestamp": 2})
        times = {result["timestamp"] for result in answer["results"]}
        page = await running.read("t")
        assert {record["timestamp"] for record in page["records"]} == times
        assert min(times) > 1_600_000_000_000


async def test_pages_follow_each_other_without_gap_or_double(agents: Agents) -> None:
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


async def test_an_offset_within_a_batch_begins_there(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        await running.produce("t", *({"value": str(n)} for n in range(10)))
        page = await running.read("t", offset=6)
        assert [record["offset"] for record in page["records"]] == [6, 7, 8, 9]


async def test_the_end_of_the_log_is_empty_and_beyond_it_is_out_of_range(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        await running.produce("t", {"value": "x"})
        page = await running.read("t", offset=1)
        assert (page["records"], page["next_offset"]) == ([], 1)
        answer = await running.http.get("/v1/topics/t/partitions/0/records?offset=2")
        assert (answer.status_code, answer.json()) == (
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


async def test_reading_by_timestamp_begins_with_the_first_record_at_or_after_it(agents: Agents) -> None:
    """In offset order, also where timestamps go back and forth, and over several files."""
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


_WRONG_READS = [
    ("/v1/topics/none/partitions/0/records", 404, "topic_not_found"),
    ("/v1/topics/t/partitions/1/records", 404, "unknown_partition"),
    ("/v1/topics/t/partitions/-1/records", 422, "invalid_request"),
    ("/v1/topics/t/partitions/0/records?offset=-1", 422, "invalid_request"),
    ("/v1/topics/t/partitions/0/records?offset=x", 422, "invalid_request"),
    ("/v1/topics/t/partitions/0/records?offset=0&timestamp=0", 422, "invalid_input"),
    ("/v1/topics/t/partitions/0/records?offset=99999999999999999999", 422, "invalid_request"),
    ("/v1/topics/t/partitions/0/records?max_records=0", 422, "invalid_request"),
    ("/nowhere", 404, "no_such_path"),
]


async def test_by_timestamp_too_a_read_begins_at_the_log_start_or_later(
    agents: Agents, catalog: Catalog
) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        times = (100, 900, 100, 100, 500)
        await running.produce("t", *({"value": "v", "timestamp": time} for time in times))
        await running.produce("t", {"value": "v", "timestamp": 900})
        catalog.retention.advance_log_start(catalog.topics.get("t").topic_id, 0, 2)
        found = [await running.read("t", timestamp=time) for time in (1, 200, 600)]
        assert [answer["records"][0]["offset"] for answer in found] == [2, 4, 5]
        await _until(lambda: running.agent.read_path.budget.held == 0)


async def test_wrong_reads_are_told_what_is_wrong(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        for path, status, code in _WRONG_READS:
            answer = await running.http.get(path)
            assert (path, answer.status_code, answer.json()["error"]["code"]) == (path, status, code)


_JSON = {"content-type": "application/json"}
_WRONG_BODIES: list[tuple[bytes, dict[str, str], int, str]] = [
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


async def test_wrong_bodies_are_told_what_is_wrong(agents: Agents) -> None:
    async with agents.running(max_request_bytes=1000) as running:
        await running.create_topic("t")
        for content, headers, status, code in _WRONG_BODIES:
            answer = await running.http.post("/v1/topics/t/records", content=content, headers=headers)
            assert (content, answer.status_code, answer.json()["error"]["code"]) == (content, status, code)
        assert agents.requests(RequestKind.PUT) == 0
        await _until(lambda: running.agent.request_budget.held == 0)


async def test_a_body_without_a_declared_length_is_bounded_too(agents: Agents) -> None:
    async def endless() -> Any:  # noqa: ANN401  # an asynchronous generator
        for _ in range(100):
            yield b" " * 100

    async with agents.running(max_request_bytes=1000) as running:
        await running.create_topic("t")
        answer = await running.http.post(
            "/v1/topics/t/records", content=endless(), headers={"content-type": "application/json"}
        )
        assert answer.status_code == 413
        await _until(lambda: running.agent.request_budget.held == 0)


async def test_a_full_buffer_pushes_back_with_a_time_to_return(agents: Agents) -> None:
    async with agents.running(max_buffered_bytes=1000, max_request_bytes=1000, flush_bytes=500) as running:
        await running.create_topic("t", 1, compression_type="uncompressed")
        running.agent.write_path.budget.reserve(990)
        answer = await running.http.post("/v1/topics/t/records", json={"records": [{"value": "x"}]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
        assert int(answer.headers["retry-after"]) >= 1
        running.agent.write_path.budget.release(990)
        assert (await running.produce("t", {"value": "x"}))["accepted"] == 1


async def test_a_body_that_does_not_arrive_is_given_up(agents: Agents, catalog: Catalog) -> None:
    catalog.topics.create("t", 1)  # by no request, whose body may take as long on a busy machine
    async with agents.running(body_timeout_ms=20) as running:
        url = running.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(
            b"POST /v1/topics/t/records HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b'content-length: 100\r\n\r\n{"records":'
        )
        assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()
        await writer.wait_closed()
        await _until(lambda: running.agent.request_budget.held == 0)


async def test_readers_beyond_the_memory_for_fetches_are_asked_to_come_back(agents: Agents) -> None:
    async with agents.running() as running:
        await running.create_topic("t")
        await running.produce("t", {"value": "x"})
        budget = running.agent.read_path.budget
        with budget.holding(budget.limit):
            answer = await running.http.get("/v1/topics/t/partitions/0/records")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
        assert len((await running.read("t"))["records"]) == 1
        await _until(lambda: budget.held == 0)


async def _reader_that_takes_nothing(running: RunningAgent, path: str) -> socket.socket:
    host, port = running.http.base_url.host, running.http.base_url.port
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(reader, (host, port))
    await loop.sock_sendall(reader, f"GET {path} HTTP/1.1\r\nHost: agent\r\n\r\n".encode())
    return reader


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # what is waited for happens in other tasks
        await asyncio.sleep(0.005)


async def test_an_answer_is_in_the_budget_until_its_reader_has_taken_it(agents: Agents) -> None:
    mib = 1 << 20
    limits = {"max_fetch_bytes": 16 * mib, "max_fetches_bytes": 24 * mib}
    async with agents.running(**limits) as running:
        await running.create_topic("t", max_message_bytes=str(16 * mib))
        await running.produce("t", {"value": "x" * 15 * mib})
        budget = running.agent.read_path.budget
        path = "/v1/topics/t/partitions/0/records"
        with contextlib.closing(await _reader_that_takes_nothing(running, path)):
            await _until(lambda: bool(budget.held) and not running.agent.pools.rendering.pending)
            refused = await running.http.get(path)
            assert refused.status_code == 503
            assert budget.held > 15 * mib
        await _until(lambda: budget.held == 0)
        assert (await running.http.get(path)).status_code == 200
        await _until(lambda: budget.held == 0)


async def test_a_reader_that_takes_nothing_is_given_up(agents: Agents) -> None:
    mib = 1 << 20
    async with agents.running(write_timeout_ms=50) as running:
        await running.create_topic("t", max_message_bytes=str(16 * mib))
        await running.produce("t", {"value": "x" * 15 * mib})
        budget = running.agent.read_path.budget
        path = "/v1/topics/t/partitions/0/records"
        with contextlib.closing(await _reader_that_takes_nothing(running, path)):
            await _until(lambda: budget.held > 0)
            await _until(lambda: budget.held == 0)


async def test_a_produce_needs_no_thread_that_reads_need(agents: Agents) -> None:
    """Also when all that render are taken."""
    async with agents.running() as running:
        await running.create_topic("t")
        gate = threading.Event()
        pools = running.agent.pools
        waits = [asyncio.ensure_future(pools.rendering.run(gate.wait)) for _ in range(4)]
        try:
            assert (await running.produce("t", {"value": "1"}))["accepted"] == 1
        finally:
            gate.set()
            await asyncio.gather(*waits)
        assert len((await running.read("t"))["records"]) == 1
