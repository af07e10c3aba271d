"""How fast the local tier's log is: appends, reads, recovery, look-ups in an index.

    python -m benchmarks.local_tier [--quick] [--json] [--directory DIR]

Batches of 16 KiB and of 1 MiB, uncompressed records of 1,000 bytes. `append` is what a leader does:
validation, offsets, producer state, write, index; requests carry about 1 MiB of batches of one producer, and
nothing is synced until the end, outside of the clock. `append_sync` counts that sync. `follow` appends what
has its offsets. `read` reads from the start to the end in steps of 1 MiB, out of memory. `recover` reads
everything through and builds all indexes anew, after a crash. Each is in MB/s of wall time, the median of
several rounds, with its share of the limit that was measured beside it in the same round: the same bytes
written to a file in the same pieces, and synced (`disk write`: with the sync; `memory write`: without), and
read back (`memory read`). `cpu` is processor seconds per GB. `look-up` goes to random offsets in an index of
ten million entries, in microseconds each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import structlog

from agent.local_tier.config import LogConfig
from agent.local_tier.files import RealFileSystem
from agent.local_tier.log_opening import open_log
from agent.local_tier.log_view import Isolation
from agent.local_tier.offset_index import OffsetIndex
from agent.local_tier.topic_partition import TopicPartition
from bedrock.clock import SystemClock
from bedrock.ids import SeededIds
from benchmarks.measuring import machine
from object_format.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.local_tier.unified_log import UnifiedLog

_VALUE = 980
_STEP = 2**20
_SEQUENCES = 2**31


class _Threadless:
    """Drops what a log wants done later: syncs would run beside what is measured."""

    def schedule_once(self, name: str, task: Callable[[], None], delay_ms: int = 0) -> None:
        """Nothing."""


class Stopwatch:
    """Wall and processor seconds of named steps, round by round."""

    def __init__(self) -> None:
        self.wall: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Measure the block."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall.setdefault(name, []).append(time.perf_counter() - wall)
        self.cpu.setdefault(name, []).append(time.process_time() - cpu)


def opened(directory: Path, *, recovery_point: int = 0) -> UnifiedLog:
    """A log with Kafka's default settings."""
    clock = SystemClock()
    return open_log(
        RealFileSystem(),
        directory,
        LogConfig(max_message_bytes=2**21),
        topic_partition=TopicPartition("benchmark", 0),
        clock=clock,
        ids=SeededIds(1, clock),
        scheduler=_Threadless(),
        on_failure=print,
        recovery_point=recovery_point,
    )


def make_requests(batch_bytes: int, total: int) -> tuple[list[bytearray], int]:
    """Produce requests of about 1 MiB, and how many records they have."""
    count = batch_bytes // (_VALUE + 20)
    values = [np.random.default_rng(7).bytes(_VALUE)] * count
    now = SystemClock().now_ms()
    per_request = max(1, _STEP // batch_bytes)
    requests: list[bytearray] = []
    sequence = 0
    size = len(encode_batch([now] * count, [b"key-12345678"] * count, values))
    while len(requests) * per_request * size < total:
        batches = []
        for _ in range(per_request):
            batches.append(
                encode_batch(
                    [now] * count, [b"key-12345678"] * count, values, producer=(1, 0, sequence % _SEQUENCES)
                )
            )
            sequence += count
        requests.append(bytearray(b"".join(batches)))
    return requests, sequence


def write_plainly(path: Path, pieces: list[bytearray], watch: Stopwatch) -> None:
    """The limit: the same pieces to one file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        with watch.time("disk write"):
            with watch.time("memory write"):
                for piece in pieces:
                    os.write(descriptor, piece)
            os.fdatasync(descriptor)
        buffer = bytearray(_STEP)
        with watch.time("memory read"):
            os.lseek(descriptor, 0, os.SEEK_SET)
            while os.readv(descriptor, [buffer]):
                pass
    finally:
        os.close(descriptor)
        path.unlink()


def measure_round(root: Path, requests: list[bytearray], watch: Stopwatch) -> None:
    """Everything once."""
    os.sync()
    write_plainly(root / "plain", requests, watch)
    os.sync()
    log = opened(root / "led-0")
    pieces = [bytearray(request) for request in requests]
    with watch.time("append_sync"):
        with watch.time("append"):
            for piece in pieces:
                log.append_as_leader(piece, 0)
        log.flush()
    with watch.time("read"):
        offset = 0
        while offset < log.log_end_offset:
            offset = log.read(offset, _STEP, Isolation.LOG_END).next_offset
    log.close_handles()
    with watch.time("recover"):
        log = opened(root / "led-0")
    log.close_handles()
    os.sync()
    log = opened(root / "followed-0")
    with watch.time("follow"):
        for piece in pieces:
            log.append_as_follower(piece)
    log.close_handles()
    for path in ("led-0", "followed-0"):
        shutil.rmtree(root / path)


LIMITS = {
    "append": "disk write",
    "append_sync": "disk write",
    "follow": "disk write",
    "read": "memory read",
    "recover": "memory read",
}


def measure_log(root: Path, batch_bytes: int, total: int, rounds: int) -> dict[str, dict[str, float]]:
    """Figures of one size of batches."""
    requests, records = make_requests(batch_bytes, total)
    size = sum(map(len, requests))
    watch = Stopwatch()
    for round_number in range(rounds + 1):
        measure_round(root, requests, watch if round_number else Stopwatch())
    figures = {}
    for name, taken in watch.wall.items():
        wall = statistics.median(taken)
        figures[name] = {
            "mb_per_s": size / wall / 1e6,
            "records_per_s": records / wall,
            "cpu_s_per_gb": statistics.median(watch.cpu[name]) / size * 1e9,
        }
        if name in LIMITS:
            ratios = [limit / own for own, limit in zip(taken, watch.wall[LIMITS[name]], strict=True)]
            figures[name]["share_of_limit"] = statistics.median(ratios)
    figures["recover"]["s_per_gib"] = statistics.median(watch.wall["recover"]) / size * 2**30
    return figures


def measure_lookups(root: Path, entries: int, lookups: int, rounds: int) -> dict[str, float]:
    """Microseconds of a look-up anywhere, and at the tail."""
    path = root / "lookup.index"
    table = np.empty((entries, 2), ">i4")
    table[:, 0] = np.arange(entries) * 3
    table[:, 1] = np.arange(entries) * 50
    path.write_bytes(table.tobytes())
    index = OffsetIndex(RealFileSystem(), path, 0, 8 * entries)
    random = np.random.default_rng(3)
    anywhere = random.integers(0, 3 * entries, lookups).tolist()
    tail = random.integers(3 * entries - 1000, 3 * entries, lookups).tolist()
    taken: dict[str, list[float]] = {"anywhere": [], "tail": []}
    for _ in range(rounds + 1):
        for name, offsets in (("anywhere", anywhere), ("tail", tail)):
            start = time.perf_counter()
            for offset in offsets:
                index.lookup(offset)
            taken[name].append((time.perf_counter() - start) / lookups * 1e6)
    index.close_without_trimming()
    path.unlink()
    return {name: statistics.median(each[1:]) for name, each in taken.items()}


def main() -> None:
    """Print tables, or one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer bytes and fewer rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument("--directory", type=Path, help="a directory on the disk that is to be measured")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    total, rounds, lookups = (2**27, 2, 20_000) if arguments.quick else (2**30, 5, 200_000)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        root = Path(name)
        sizes = {f"{size // 1024} KiB": size for size in (2**14, 2**20)}
        results = {label: measure_log(root, size, total, rounds) for label, size in sizes.items()}
        microseconds = measure_lookups(root, 10_000_000, lookups, rounds)
    if arguments.json:
        print(json.dumps({"machine": machine(), "results": results, "look_up_us": microseconds}))
        return
    for label, figures in results.items():
        print(f"\nbatches of {label:<12}{'MB/s':>10}{'records/s':>14}{'cpu s/GB':>10}{'of limit':>10}")
        for step, row in figures.items():
            share = f"{row['share_of_limit']:>10.0%}" if "share_of_limit" in row else ""
            print(
                f"{step:<23}{row['mb_per_s']:>10,.0f}{row['records_per_s']:>14,.0f}{row['cpu_s_per_gb']:>10.2f}"
                f"{share}"
            )
        print(f"recovery of a GiB: {figures['recover']['s_per_gib']:.2f} s")
    print("\nlook-up in 10 M entries, µs: " + ", ".join(f"{k} {v:.1f}" for k, v in microseconds.items()))


if __name__ == "__main__":
    main()
