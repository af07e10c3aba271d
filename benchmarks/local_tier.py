"""How fast the local tier's log is: appends, reads, recovery, cleaning, index lookups.

    python -m benchmarks.local_tier [--quick] [--json] [--directory DIR]

Batches have 16 KiB or 1 MiB, and contain uncompressed records of 1,000 bytes. `append` does the work of a
leader: validation, offsets, producer state, write, index. Requests contain about 1 MiB of batches of one
producer, and the sync at the end is not measured. `append_validated` appends batches that the agent has
validated already. `append_sync` includes the sync. `follow` appends batches with offsets. `read` reads from
start to end in steps of 1 MiB, from memory. `recover` reads everything and rebuilds all indexes, as after a
crash. Each figure is in MB/s of wall time, the median of several rounds, with its share of a limit that is
measured in the same round. The limits are the same bytes written to a file in the same pieces (`disk write`:
with sync; `memory write`: without) and read again (`memory read`). `cpu` is processor seconds per GB, and
`own` the part outside the kernel.

Before each write, the same amount is written to a temporary file, because the page cache may get its memory
cheaply or, on a virtual machine, at a high cost. All measurements then start from the same state.

`lookup` searches random offsets in an index of ten million entries. `clean` is described in
`benchmarks.parts.local_cleaner`.
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

from benchmarks.parts.local_cleaner import measure_cleaner
from benchmarks.parts.local_index import measure_lookups
from benchmarks.parts.measuring import machine
from core.clock import SystemClock
from core.ids import SeededIds
from local_tier.config import LogConfig
from local_tier.files.file_system import RealFileSystem
from local_tier.log.log_loader import open_log
from local_tier.log.unified_log import Isolation
from local_tier.topic_partition import TopicPartition
from object_format.record_batch.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from local_tier.log.unified_log import UnifiedLog

_VALUE = 980
_STEP = 2**20
_MAX_BATCH = 2**21
_SEQUENCES = 2**31


class _NoScheduler:
    """Drops scheduled work of a log, because syncs would disturb the measurement."""

    def schedule_once(self, name: str, task: Callable[[], None], delay_ms: int = 0) -> None:
        """Ignore the task."""


class Stopwatch:
    """Wall and processor seconds of named steps, per round."""

    def __init__(self) -> None:
        self.wall: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}
        self.own: dict[str, list[float]] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Measure the block."""
        own, cpu, wall = os.times().user, time.process_time(), time.perf_counter()
        yield
        self.wall.setdefault(name, []).append(time.perf_counter() - wall)
        self.cpu.setdefault(name, []).append(time.process_time() - cpu)
        self.own.setdefault(name, []).append(os.times().user - own)


def opened(directory: Path, *, recovery_point: int = 0) -> UnifiedLog:
    """Yield a log with Kafka's default settings."""
    clock = SystemClock()
    return open_log(
        RealFileSystem(),
        directory,
        LogConfig(max_message_bytes=_MAX_BATCH),
        topic_partition=TopicPartition("benchmark", 0),
        clock=clock,
        ids=SeededIds(1, clock),
        scheduler=_NoScheduler(),
        on_failure=print,
        log_start_offset=0,
        recovery_point=recovery_point,
        had_clean_shutdown=False,
    )


def make_requests(batch_bytes: int, total: int) -> tuple[list[bytes], int]:
    """Return produce requests of about 1 MiB, and their number of records."""
    count = batch_bytes // (_VALUE + 20)
    values = [np.random.default_rng(7).bytes(_VALUE)] * count
    now = SystemClock().now_ms()
    per_request = max(1, _STEP // batch_bytes)
    requests: list[bytes] = []
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
        requests.append(b"".join(batches))
    return requests, sequence


def write_plainly(path: Path, pieces: list[bytearray], watch: Stopwatch) -> None:
    """Write the same pieces to one file, as the limit."""
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


def touch_memory(path: Path, pieces: list[bytearray]) -> None:
    """Leave as much recently used free memory in the page cache as the pieces take."""
    os.sync()
    with path.open("wb", buffering=0) as file:
        for piece in pieces:
            file.write(piece)
    path.unlink()


def measure_appends(root: Path, pieces: list[bytearray], watch: Stopwatch) -> None:
    """Append as leader and as follower, to logs that are deleted immediately."""
    rules = LogConfig(max_message_bytes=_MAX_BATCH).append_rules
    appends: dict[str, Callable[[UnifiedLog, bytearray], object]] = {
        "append_validated": lambda log, piece: log.append_as_leader(piece, 0, validated_by=rules),
        "follow": lambda log, piece: log.append_as_follower(piece),
    }
    for name, append in appends.items():
        touch_memory(root / "plain", pieces)
        log = opened(root / f"{name}-0")
        with watch.time(name):
            for piece in pieces:
                append(log, piece)
        log.close_handles()
        shutil.rmtree(root / f"{name}-0")


def measure_round(root: Path, requests: list[bytes], pieces: list[bytearray], watch: Stopwatch) -> None:
    """Measure everything once."""
    for piece, request in zip(pieces, requests, strict=True):
        piece[:] = request
    touch_memory(root / "plain", pieces)
    write_plainly(root / "plain", pieces, watch)
    touch_memory(root / "plain", pieces)
    log = opened(root / "led-0")
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
    shutil.rmtree(root / "led-0")
    measure_appends(root, pieces, watch)


LIMITS = {
    "append": "disk write",
    "append_validated": "disk write",
    "append_sync": "disk write",
    "follow": "disk write",
    "read": "memory read",
    "recover": "memory read",
}


def measure_log(root: Path, batch_bytes: int, total: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the figures for one batch size."""
    requests, records = make_requests(batch_bytes, total)
    size = sum(map(len, requests))
    watch, pieces = Stopwatch(), [bytearray(request) for request in requests]
    for round_number in range(rounds + 1):
        measure_round(root, requests, pieces, watch if round_number else Stopwatch())
    figures = {}
    for name, taken in watch.wall.items():
        wall = statistics.median(taken)
        figures[name] = {
            "mb_per_s": size / wall / 1e6,
            "records_per_s": records / wall,
            "cpu_s_per_gb": statistics.median(watch.cpu[name]) / size * 1e9,
            "own_cpu_s_per_gb": statistics.median(watch.own[name]) / size * 1e9,
        }
        if name in LIMITS:
            ratios = [limit / own for own, limit in zip(taken, watch.wall[LIMITS[name]], strict=True)]
            figures[name]["share_of_limit"] = statistics.median(ratios)
    figures["recover"]["s_per_gib"] = statistics.median(watch.wall["recover"]) / size * 2**30
    return figures


def main() -> None:
    """Print tables, or one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer bytes and fewer rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument("--directory", type=Path, help="a directory on the disk to measure")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    quick = arguments.quick
    total, rounds, lookups, cleaned = (2**27, 2, 20_000, 200_000) if quick else (2**29, 5, 200_000, 2_000_000)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        root = Path(name)
        sizes = {f"{size // 1024} KiB": size for size in (2**14, 2**20)}
        results = {label: measure_log(root, size, total, rounds) for label, size in sizes.items()}
        cleaner = measure_cleaner(root, opened, cleaned, min(rounds, 3))
        microseconds = measure_lookups(root, 10_000_000, lookups, min(rounds, 3))
    if arguments.json:
        found = {"results": results, "clean": cleaner, "look_up_us": microseconds}
        print(json.dumps({"machine": machine(), **found}))
        return
    for label, figures in results.items():
        print_table(label, figures)
    print(f"\nclean: {cleaner['records_per_s']:,.0f} records/s, {cleaner['mb_per_s']:,.0f} MB/s, and keeps")
    print(
        f"{cleaner['share_kept']:.0%}; survivors alone: {cleaner['survivors_records_per_s']:,.0f} records/s"
    )
    for name, each in microseconds.items():
        print(f"lookup in 10 M entries, {name}: {each:.1f} µs, {1e6 / each:,.0f} a second")


def print_table(label: str, figures: dict[str, dict[str, float]]) -> None:
    """Print the steps of one batch size."""
    print(f"\nbatches of {label:<12}{'MB/s':>10}{'records/s':>14}{'cpu s/GB':>10}{'own':>7}{'of limit':>10}")
    for step, row in figures.items():
        share = f"{row['share_of_limit']:>10.0%}" if "share_of_limit" in row else ""
        print(
            f"{step:<23}{row['mb_per_s']:>10,.0f}{row['records_per_s']:>14,.0f}{row['cpu_s_per_gb']:>10.2f}"
            f"{row['own_cpu_s_per_gb']:>7.2f}{share}"
        )
    print(f"recovery of a GiB: {figures['recover']['s_per_gib']:.2f} s")


if __name__ == "__main__":
    main()
