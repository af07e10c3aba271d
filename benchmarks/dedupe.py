"""How fast both passes of deduplication are, on one core and in memory.

    python -m benchmarks.dedupe [--quick] [--json]

Each case is one partition, fed as in a compaction task: sections of at most 8 MiB in blocks of 256 KiB,
newest section first in pass 1, oldest first in pass 2. Figures are medians of five rounds (three with
`--quick`) per second of processor time, so that other processes have little effect. Each round also copies
the blocks to one buffer; `ratio_to_copy` is the throughput of both passes divided by that of this copy. The
time of the early filter (`object_format.dedupe.early_filter`) is part of pass 1. If it leaves nothing to pass
2, `pass2_records_per_s` is null. Bytes are those of the stored input. For compressed cases,
`codec_records_per_s` is the limit that the libraries set: each round also decompresses all stored batches and
compresses the records of the result, and does nothing else. `key_table` fills a table of 128 MiB with
distinct keys; its `inserts_per_s_full` is the rate of the last hundredth.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.parts.dedupe_data import Case, Section, make_sections
from benchmarks.parts.measuring import machine, median_of_sums, seconds_by_round
from object_format.buffers import readable
from object_format.codecs.codec import Codec, compress
from object_format.dedupe import (
    EarlyFilter,
    KeyTable,
    RewriteOptions,
    SurvivorFinder,
    Survivors,
    rewrite_batches,
)
from object_format.kernels.dedupe.fingerprints import WORDS
from object_format.record_batch.decompression import Scratch, open_batches
from object_format.record_batch.headers import scan_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TABLE_BYTES = 134_217_728
_SEED = bytes(range(16))
_NOW = 1_700_000_100_000
_OPTIONS = RewriteOptions(delete_horizon_ms=_NOW)
_ROUNDS = 5
_QUICK_ROUNDS = 3

_UNCOMPRESSED = Case(keys=1_000_000, records=4_000_000)
_MANY_KEYS = Case(keys=10_000_000, records=12_000_000)
_LARGE_VALUES = Case(keys=500_000, records=1_000_000, value_bytes=1024)
_LZ4 = replace(_UNCOMPRESSED, codec=Codec.LZ4)
_ZSTD = replace(_UNCOMPRESSED, codec=Codec.ZSTD)
_SINGLE = replace(_UNCOMPRESSED, batch_records=1)

QUICK = (
    _UNCOMPRESSED,
    _MANY_KEYS,
    _LARGE_VALUES,
    replace(_LZ4, keys=250_000, records=1_000_000),
    replace(_ZSTD, keys=250_000, records=1_000_000),
    replace(_SINGLE, records=2_000_000),
)
FULL = (
    _UNCOMPRESSED,
    replace(_UNCOMPRESSED, zipf=True),
    replace(_UNCOMPRESSED, batch_records=16),
    _SINGLE,
    _MANY_KEYS,
    replace(_MANY_KEYS, zipf=True),
    replace(_MANY_KEYS, batch_records=16),
    _LARGE_VALUES,
    replace(_LARGE_VALUES, batch_records=16),
    replace(_LARGE_VALUES, batch_records=1),
    *(
        replace(case, codec=codec)
        for codec in (Codec.LZ4, Codec.ZSTD)
        for case in (
            _UNCOMPRESSED,
            replace(_UNCOMPRESSED, zipf=True),
            replace(_UNCOMPRESSED, batch_records=16),
            replace(_SINGLE, records=1_500_000),
            _MANY_KEYS,
            _LARGE_VALUES,
        )
    ),
)


class _Passes:
    """Both passes over one partition. Pass 2 uses the survivors of the last pass 1."""

    def __init__(self, sections: Sequence[Section], records: int, table: KeyTable) -> None:
        self._sections = sections
        self._records = records
        self._table = table
        self._copied = memoryview(bytearray(1 << 20))
        self._early_filter = EarlyFilter()
        self.keep_written = False
        self._scratch = Scratch()
        self._written: list[bytes] = []
        self.survivors: Survivors | None = None
        self.bytes_in = sum(len(block) for section in sections for block in section.blocks)
        self.bytes_out = 0

    def copy(self) -> None:
        for section in self._sections:
            for block in section.blocks:
                self._copied[: len(block)] = block

    def first(self) -> None:
        self._early_filter.begin_partition(_OPTIONS)
        finder = SurvivorFinder(
            self._table,
            _SEED,
            reaches_log_start=True,
            now_ms=_NOW,
            expected_records=self._records,
            early_filter=self._early_filter,
        )
        for section in reversed(self._sections):
            finder.begin_section(unique_keys=False)
            for block in section.blocks:
                finder.feed(block, offset_shift=section.shift)
            finder.end_section()
        self.survivors = finder.finish()

    @property
    def all_early(self) -> bool:
        """Return True if the early filter has left nothing to pass 2."""
        return all(done is not None for section in self._early_filter.sections for done in section.pieces)

    def second(self) -> None:
        assert self.survivors is not None
        self.bytes_out = 0
        for section, early in zip(self._sections, reversed(self._early_filter.sections), strict=True):
            for block, done in zip(section.blocks, early.pieces, strict=True):
                filtered = (
                    done.filtered
                    if done
                    else rewrite_batches(
                        block, self.survivors, _OPTIONS, offset_shift=section.shift, leader_epoch=0
                    )
                )
                self.bytes_out += filtered.size
                if self.keep_written:
                    self._written += map(bytes, filtered.buffers)

    def prepare_codec(self) -> None:
        """Keep the uncompressed records of the result for `compress`."""
        self.keep_written = True
        self.first()
        self.second()
        self.keep_written = False
        written, self._written = self._written, []
        for buffer in written:
            data = readable(buffer)
            for records, run in open_batches(data, scan_batches(data), self._scratch):
                self._written += [
                    records[start:end].tobytes()
                    for start, end in zip(run["records_start"], run["records_end"], strict=True)
                ]

    def decompress(self) -> None:
        """Decompress all stored batches."""
        for section in self._sections:
            for block in section.blocks:
                data = readable(block)
                for _opened in open_batches(data, scan_batches(data), self._scratch):
                    pass

    def compress(self, codec: Codec) -> None:
        """Compress the records of the result."""
        for records in self._written:
            compress(codec, records)


def measure(case: Case, table: KeyTable, rounds: int) -> dict[str, Any]:
    passes = _Passes(make_sections(case), case.records, table)
    steps: dict[str, Callable[[], object]] = {
        "copy": passes.copy,
        "pass1": passes.first,
        "pass2": passes.second,
    }
    if case.codec is not Codec.NONE:
        passes.prepare_codec()
        steps |= {"decompress": passes.decompress, "compress": partial(passes.compress, case.codec)}
    taken = seconds_by_round(steps, rounds)
    both = median_of_sums(taken["pass1"], taken["pass2"])
    survivors = passes.survivors
    assert survivors is not None
    assert survivors.exact
    early = passes.all_early
    return {
        "name": case.name,
        "codec": case.codec.name.lower(),
        "value_bytes": case.value_bytes,
        "keys": case.keys,
        "distribution": "zipf" if case.zipf else "uniform",
        "batch_records": case.batch_records,
        "records": case.records,
        "records_out": survivors.records_out,
        "bytes_in": passes.bytes_in,
        "bytes_out": passes.bytes_out,
        "pass1_records_per_s": round(case.records / statistics.median(taken["pass1"])),
        "pass2_records_per_s": None if early else round(case.records / statistics.median(taken["pass2"])),
        "both_records_per_s": round(case.records / both),
        "codec_records_per_s": (
            round(case.records / median_of_sums(taken["decompress"], taken["compress"]))
            if "compress" in taken
            else None
        ),
        "both_mb_per_s": round(passes.bytes_in / both / 1e6),
        "copy_mb_per_s": round(passes.bytes_in / statistics.median(taken["copy"]) / 1e6),
        "ratio_to_copy": round(statistics.median(taken["copy"]) / both, 4),
    }


def fill_key_table(table: KeyTable) -> dict[str, int]:
    """Insert distinct random fingerprints until the table is full."""

    def insert(words: npt.NDArray[np.uint32], count: int) -> float:
        start = time.process_time()
        table.find_survivors(
            words, np.zeros(count, np.uint8), count, newest_last=False, drop_tombstones=False
        )
        return time.process_time() - start

    insert(np.ones(WORDS, np.uint32), 1)  # compiles the kernel, or loads it
    table.clear()
    capacity = table.capacity
    rng = np.random.default_rng(2)
    step = capacity // 100
    seconds = []
    while table.count < capacity:
        count = min(step, capacity - table.count)
        seconds.append((count, insert(rng.integers(1, 1 << 32, count * WORDS, np.uint32), count)))
    nearly_full = [(count, taken) for count, taken in seconds if count == step][-1]
    return {
        "keys": table.count,
        "bytes": table.table_bytes,
        "fingerprint_bits": 32 * WORDS,
        "inserts_per_s": round(table.count / sum(taken for _, taken in seconds)),
        "inserts_per_s_full": round(nearly_full[0] / nearly_full[1]),
    }


def print_table(key_table: dict[str, int], cases: list[dict[str, Any]]) -> None:
    print(
        f"key table: {key_table['keys']:,} keys of {key_table['fingerprint_bits']} bits"
        f" in {key_table['bytes']:,} bytes,"
        f" {key_table['inserts_per_s'] / 1e6:.1f} M inserts/s,"
        f" {key_table['inserts_per_s_full'] / 1e6:.1f} M/s when nearly full"
    )
    print(
        f"{'M records/s':<64}{'pass 1':>8}{'pass 2':>8}{'both':>8}{'codec':>8}"
        f"{'MB/s':>8}{'copy':>8}{'ratio':>8}"
    )
    for case in cases:
        rates = [case[f"{name}_records_per_s"] for name in ("pass1", "pass2", "both", "codec")]
        absent = ("", "early", "", "-")
        millions = "".join(map(_in_millions, rates, absent))
        print(
            f"{case['name']:<64}{millions}{case['both_mb_per_s']:>8,}{case['copy_mb_per_s']:>8,}"
            f"{case['ratio_to_copy']:>8.3f}"
        )


def _in_millions(rate: int | None, absent: str) -> str:
    return f"{absent:>8}" if rate is None else f"{rate / 1e6:>8.2f}"


def main() -> None:
    """Print a table, or one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="six important cases, in three rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    table = KeyTable(TABLE_BYTES)
    key_table = fill_key_table(table)
    chosen, rounds = (QUICK, _QUICK_ROUNDS) if arguments.quick else (FULL, _ROUNDS)
    cases = [measure(case, table, rounds) for case in chosen]
    if arguments.json:
        print(json.dumps({"machine": machine(), "key_table": key_table, "cases": cases}))
    else:
        print_table(key_table, cases)


if __name__ == "__main__":
    main()
