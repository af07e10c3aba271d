"""Throughput of the disk below an agent, for the Kafka benchmark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from time import perf_counter
from typing import TYPE_CHECKING

from core.clock import SystemClock
from core.ids import SystemIds
from object_store.accounting import Purpose
from object_store.open import StoreConfig, open_store

if TYPE_CHECKING:
    from pathlib import Path

_FILE_BYTES = 8 * 1024 * 1024  # size of a full ingestion file
_AT_ONCE = 4


def disk_mb_per_second(directory: Path, megabytes: int) -> dict[str, float]:
    """Write files of 8 MiB to a local store: sequentially, and four at a time."""
    clock = SystemClock()
    files = max(megabytes * 1_000_000 // _FILE_BYTES // 2, 2 * _AT_ONCE)
    body = [memoryview(bytes(_FILE_BYTES))]
    figures = {}
    config = StoreConfig(url=str(directory / "limit"))
    with closing(open_store(config, clock, SystemIds(clock))) as store:
        for name, threads in (("one_by_one", 1), ("in_parallel", _AT_ONCE)):
            with ThreadPoolExecutor(threads) as pool:
                begin = perf_counter()
                for _ in pool.map(
                    lambda number, name=name: store.put(f"{name}/{number}", body, purpose=Purpose.INGEST),
                    range(files),
                ):
                    pass
                figures[name] = round(files * _FILE_BYTES / (perf_counter() - begin) / 1e6, 1)
    return figures
