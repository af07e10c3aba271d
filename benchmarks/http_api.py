"""How many records per second can be produced and consumed as JSON over HTTP.

    python -m benchmarks.http_api [--json] [--quick]

The agent is a separate process with default settings, an embedded catalog and a local directory as its object
store. The load comes from this process over 16 connections, on the same cores. Everything is read twice: from
the agent that wrote it (from memory) and from a new agent (from the object store). `json_parse` and
`json_render`, measured without an agent, are the limits of one core.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click
import httpx
import orjson

from agent.http.records.produce_body import parse_records
from agent.http.records.rendering import RecordsRendering
from agent.listeners import HttpListener
from agent.process import run
from agent.read.fetch_result import FetchResult
from agent.settings import AgentSettings
from catalog.open import EmbeddedPostgres, migrate_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from object_format.record_batch.records import Record, encode_records
from object_store.open import StoreConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

PARTITIONS = 12
CONNECTIONS = 16
VALUE = orjson.dumps({"tailnum": "N12345", "origin": "EWR", "dest": "IAH", "padding": "x" * 100}).decode()


def _agent(addresses: Connection, store: StoreConfig, catalog_url: str) -> None:
    settings = AgentSettings(http_listeners=(HttpListener(port=0),))
    run(settings, store_config=store, catalog_url=catalog_url, on_ready=addresses.send)


@contextmanager
def _running(store: StoreConfig, catalog_url: str) -> Iterator[str]:
    """Yield the base URL of an agent in a separate process."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_agent, args=(theirs, store, catalog_url))
    process.start()
    try:
        yield f"http://{ours.recv()['http']}"
    finally:
        process.terminate()
        process.join()


async def _produce(url: str, requests: int, per_request: int) -> dict[str, float]:
    body = orjson.dumps(
        {
            "records": [
                {"key": f"N{number}", "value": VALUE, "timestamp": 1000} for number in range(per_request)
            ]
        }
    )
    headers = {"content-type": "application/json"}
    turns = iter(range(requests))
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:

        async def send() -> None:
            for _ in turns:
                (
                    await http.post("/v1/topics/bench/records", content=body, headers=headers)
                ).raise_for_status()

        await send_one(http, body)
        begin = perf_counter()
        await asyncio.gather(*(send() for _ in range(CONNECTIONS)))
        seconds = perf_counter() - begin
    return _rates(requests * per_request, requests * len(body), seconds)


async def send_one(http: httpx.AsyncClient, body: bytes) -> None:
    """Create the topic, and warm up the agent."""
    await http.post("/v1/topics", json={"name": "bench", "partitions": PARTITIONS})
    await http.post("/v1/topics/bench/records", content=body, headers={"content-type": "application/json"})


async def _consume(url: str) -> dict[str, float]:
    """Read every partition from start to end."""
    records = size = 0
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:

        async def read(partition: int) -> tuple[int, int]:
            offset = count = length = 0
            while True:
                response = await http.get(
                    f"/v1/topics/bench/partitions/{partition}/records",
                    params={"offset": offset, "max_records": 10_000, "max_bytes": 4 * 1024 * 1024},
                )
                page = orjson.loads(response.raise_for_status().content)
                count, length = count + len(page["records"]), length + len(response.content)
                offset = page["next_offset"]
                if offset >= page["high_watermark"]:
                    return count, length

        begin = perf_counter()
        for count, length in await asyncio.gather(*(read(number) for number in range(PARTITIONS))):
            records, size = records + count, size + length
        seconds = perf_counter() - begin
    return _rates(records, size, seconds)


def _limits(count: int) -> dict[str, dict[str, float]]:
    """Measure parsing and rendering alone, on one core."""
    records = [Record(number, 1000, b"N1", VALUE.encode()) for number in range(count)]
    batch = bytearray(encode_records(records))
    fetched = FetchResult(partition=0, batches=[batch], next_offset=count, high_watermark=count)
    begin = perf_counter()
    rendering = RecordsRendering("bench", fetched, from_offset=0, max_records=count, max_bytes=2**40)
    while rendering.step():
        pass
    page = b"".join(rendering.pieces())
    rendered = perf_counter() - begin
    body = orjson.dumps({"records": orjson.loads(page)["records"]})
    begin = perf_counter()
    parse_records(body)
    parsed = perf_counter() - begin
    return {
        "json_parse": _rates(count, len(body), parsed),
        "json_render": _rates(count, len(page), rendered),
    }


def _rates(records: int, size: int, seconds: float) -> dict[str, float]:
    return {
        "records": records,
        "seconds": round(seconds, 3),
        "records_per_second": round(records / seconds),
        "json_mb_per_second": round(size / seconds / 1e6, 1),
    }


def measure(directory: Path, *, quick: bool) -> dict[str, Any]:
    """Return all figures."""
    requests, per_request = (40, 1000) if quick else (400, 2000)
    store = StoreConfig(url=str(directory / "objects"))
    clock = SystemClock()
    with EmbeddedPostgres(directory / "catalog") as postgres:
        migrate_catalog(postgres.url, clock, SystemIds(clock))
        with _running(store, postgres.url) as url:
            produced = asyncio.run(_produce(url, requests, per_request))
            from_memory = asyncio.run(_consume(url))
        with _running(store, postgres.url) as url:
            from_store = asyncio.run(_consume(url))
    return {
        "produce": produced,
        "consume_from_memory": from_memory,
        "consume_from_store": from_store,
        **_limits(per_request * 10),
    }


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on the last line.")
@click.option("--quick", is_flag=True, help="A few seconds instead of a minute.")
def main(*, as_json: bool, quick: bool) -> None:
    """Run the benchmark and print the report."""
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(Path(directory), quick=quick)
    if as_json:
        print(orjson.dumps(figures).decode())
        return
    for name, rates in figures.items():
        print(f"{name:22} {rates['records_per_second']:>9,} records/s {rates['json_mb_per_second']:>7} MB/s")


if __name__ == "__main__":
    main()
