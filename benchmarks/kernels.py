"""How fast the kernels of object_format are, on one core.

    python -m benchmarks.kernels [--quick] [--json]

Records have 36-byte keys and 100-byte values, in uncompressed batches of 500. Each figure is the median of
several rounds, in millions per second of processor time, and as a share of the rate at which `memcpy` copies
the same bytes in the same run. Inserting into the key table does not read bytes sequentially, and has no
share. `insert_50` and `insert_95` are the last 1 % before the table is half full, and before it is full.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from object_format.dedupe import KeyTable, SurvivorFinder, filter_batches
from object_format.record_batch.partitioner import partition_for_keys
from object_format.record_batch.records import RecordColumns, decode_batches, encode_batch
from object_format.record_batch.validation import validate_batches

if TYPE_CHECKING:
    from collections.abc import Callable

_KEY_BYTES = 36
_VALUE_BYTES = 100
_BATCH_RECORDS = 500
_CHUNK_BATCHES = 4
_SEED = bytes(range(16))


def make_chunks(records: int) -> list[bytes]:
    """Return batches with two records per key on average, in chunks like the blocks of a segment file."""
    random = np.random.default_rng(1)
    ids = random.integers(0, records // 2, records)
    value = random.bytes(_VALUE_BYTES)
    batches = []
    for first in range(0, records, _BATCH_RECORDS):
        keys = [b"%0*d" % (_KEY_BYTES, key) for key in ids[first : first + _BATCH_RECORDS].tolist()]
        batches.append(encode_batch([first] * len(keys), keys, [value] * len(keys), base_offset=first))
    return [b"".join(batches[at : at + _CHUNK_BATCHES]) for at in range(0, len(batches), _CHUNK_BATCHES)]


def find(chunks: list[bytes], table: KeyTable, records: int) -> SurvivorFinder:
    """Run pass 1 over one section of distinct keys, so that nothing is retained."""
    finder = SurvivorFinder(table, _SEED, reaches_log_start=True, now_ms=0, expected_records=records)
    finder.begin_section(unique_keys=True)
    for chunk in chunks:
        finder.feed(chunk, offset_shift=0)
    finder.end_section()
    return finder


def decode(chunks: list[bytes]) -> list[RecordColumns]:
    """Decode the records of every chunk."""
    return [columns for chunk in chunks for columns in decode_batches(chunk)]


def median_seconds(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Measure steps alternately, so that other load affects all of them; the first round compiles."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            start = time.thread_time()
            step()
            seconds[name].append(time.thread_time() - start)
    return {name: statistics.median(taken[1:]) for name, taken in seconds.items()}


def measure_passes(records: int, rounds: int) -> dict[str, dict[str, float]]:
    """Measure all operations on batches."""
    chunks = make_chunks(records)
    table = KeyTable(64 * 2**20)
    survivors = find(chunks, table, records).finish()
    columns = decode(chunks)

    def filter_all() -> None:
        for chunk in chunks:
            filter_batches(chunk, survivors, offset_shift=0, leader_epoch=1, delete_horizon_ms=None)

    def partition_all() -> None:
        for each in columns:
            partition_for_keys(each.data.data, each.key_start, each.key_length, 12)

    seconds = median_seconds(
        {
            "memcpy": lambda: [bytearray(chunk) for chunk in chunks],
            "validate": lambda: [validate_batches(chunk, require_keys=True) for chunk in chunks],
            "decode": lambda: decode(chunks),
            "pass_1": lambda: find(chunks, table, records),
            "pass_2": filter_all,
            "murmur2": partition_all,
        },
        rounds,
    )
    return {
        name: {"million_per_s": records / taken / 1e6, "share_of_memcpy": seconds["memcpy"] / taken}
        for name, taken in seconds.items()
    }


def measure_inserts(table_bytes: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the rate of the last 1 % before each load."""
    table = KeyTable(table_bytes)
    slots = table.table_bytes // 12
    words = np.random.default_rng(2).integers(1, 2**32, 3 * table.capacity, np.uint32)
    flags = np.zeros(slots, np.uint8)

    def insert(first: int, end: int) -> float:
        start = time.thread_time()
        table.find_survivors(
            words[3 * first : 3 * end], flags, end - first, newest_last=False, drop_tombstones=False
        )
        return (end - first) / (time.thread_time() - start) / 1e6

    rates: dict[str, list[float]] = {"insert_50": [], "insert_95": []}
    step = slots // 100
    for _ in range(rounds + 1):
        table.clear()
        half = slots // 2
        insert(0, half - step)
        rates["insert_50"].append(insert(half - step, half))
        insert(half, table.capacity - step)
        rates["insert_95"].append(insert(table.capacity - step, table.capacity))
        assert table.count == table.capacity
    return {name: {"million_per_s": statistics.median(each[1:])} for name, each in rates.items()}


def main() -> None:
    """Print a table, or one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer records, a smaller table, fewer rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    records, table_bytes, rounds = (100_000, 2**24, 3) if arguments.quick else (1_000_000, 2**27, 5)
    results = measure_passes(records, rounds) | measure_inserts(table_bytes, rounds)
    if arguments.json:
        print(json.dumps({"records": records, "table_bytes": table_bytes, "results": results}))
        return
    print(f"{'':<12}{'million/s':>12}{'of memcpy':>12}")
    for name, figures in results.items():
        share = f"{figures['share_of_memcpy']:>12.1%}" if "share_of_memcpy" in figures else ""
        print(f"{name:<12}{figures['million_per_s']:>12.2f}{share}")


if __name__ == "__main__":
    main()
