"""Processor time of the two log cleaners for the same log, each with its default settings.

A log is written once, and each sample cleans a copy of it. All of it is dirty, there are four records for
each key, and keys come in random order. Batches have about 16 KiB before compression, as Java's producer
sends them. Times are those of all threads of a process, including the kernel, and for Kafka including Java's
compiler and garbage collector. Both processes live on, and the first sample of each does not count.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from statistics import median
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.beside_kafka.comparison import Comparison, Sample
from benchmarks.beside_kafka.load import Load, LoadError
from benchmarks.beside_kafka.servers import KAFKA, SILTSTONE
from benchmarks.local_tier import opened
from benchmarks.parts.dedupe_data import make_pool
from benchmarks.parts.local_cleaner import clean, make_cleanable, make_requests, new_cleaner
from object_format.codecs.codec import Codec, compress, decompress
from object_format.kernels.batches.layout import ATTRIBUTES, BATCH_LENGTH, BATCH_OVERHEAD, LENGTH_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.beside_kafka.java_process import JavaProcess
    from local_tier.cleaner.cleaner import Cleaner
    from local_tier.log.unified_log import UnifiedLog

RECORD_BYTES = (136, 1024)
CODECS = ("none", "lz4", "zstd")
_KEY_BYTES = 36
_VALUES = 50_000
_BATCH_BYTES = 16 * 1024
_TOTAL_RECORDS = {136: 4_000_000, 1024: 500_000}
_RECORDS_PER_KEY = 4
_LOG = "cleaned-0"
_CODEC_BITS = 7
_LIMIT_SECONDS = 300.0
_GOAL = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell of the matrix."""

    record_bytes: int = 136
    codec: str = "none"

    def described(self) -> dict[str, Any]:
        """Return what differs between cells."""
        return {"record_bytes": self.record_bytes, "codec": self.codec}


def default_cases() -> list[Case]:
    """Return all cells."""
    return [Case(record_bytes=size, codec=codec) for size in RECORD_BYTES for codec in CODECS]


def quick_cases() -> list[Case]:
    """Return few cells."""
    return [Case(), Case(codec="zstd")]


def compare(
    directory: Path, cases: Sequence[Case], kafka: JavaProcess, *, rounds: int, share: float
) -> Iterator[Comparison]:
    """Measure each cell with both cleaners, for this share of the usual number of records."""
    for case in cases:
        count = int(_TOTAL_RECORDS[case.record_bytes] * share)
        root = directory / f"{case.record_bytes}-{case.codec}"
        described = {"records": count, **case.described()}
        try:
            size = _write(root / "original" / _LOG, case, count)
            samples, codec_seconds = _samples(root, case, size, count, kafka, rounds)
            limit = median(codec_seconds) if codec_seconds else None
            yield Comparison("cleaner", described, samples, _GOAL, "s", limit)
        except LoadError as error:
            yield Comparison("cleaner", described, {}, _GOAL, "s", failure=str(error))
        finally:
            shutil.rmtree(root, ignore_errors=True)


def _samples(
    root: Path, case: Case, size: int, count: int, kafka: JavaProcess, rounds: int
) -> tuple[dict[str, list[Sample]], list[float]]:
    """Return the samples of both cleaners, and the times of the compression library between them."""
    cleaner = new_cleaner()
    codec_seconds: list[float] = []
    samples: dict[str, list[Sample]] = {KAFKA: [], SILTSTONE: []}
    for number in range(rounds + 1):
        for name, found in samples.items():
            log = root / f"{name}-{number}" / _LOG
            shutil.copytree(root / "original" / _LOG, log)
            os.sync()  # otherwise writing the copy would go on during the measurement
            seconds = _clean_with_kafka(kafka, log, count) if name == KAFKA else _clean(cleaner, log, count)
            shutil.rmtree(log.parent)
            if number:
                found.append(Sample(Load(size / 1e6, seconds), seconds))
        if number and case.codec != "none":
            codec_seconds.append(_codec_seconds(root / "original" / _LOG))
    return samples, codec_seconds


def _write(directory: Path, case: Case, count: int) -> int:
    """Write the log, and return its size."""
    directory.parent.mkdir(parents=True)
    log = opened(directory)
    requests = make_requests(
        *_records(count, case.record_bytes),
        batch_records=_BATCH_BYTES // case.record_bytes,
        codec=Codec[case.codec.upper()],
    )
    for request in requests:
        log.append_as_leader(bytearray(request), 0)
    if log.log_end_offset != count:
        raise RuntimeError(f"the log has {log.log_end_offset} records instead of {count}")
    make_cleanable(log)
    size = int(log.size)
    log.close()
    return size


def _records(count: int, record_bytes: int) -> tuple[list[bytes], list[bytes]]:
    """Return keys of 36 hexadecimal digits, and values that are parts of JSON."""
    rng = np.random.default_rng(1)
    keys = [rng.bytes(_KEY_BYTES // 2).hex().encode() for _ in range(count // _RECORDS_PER_KEY)]
    pool, size = make_pool(rng).tobytes(), record_bytes - _KEY_BYTES
    starts = rng.integers(0, len(pool) - size, _VALUES).tolist()
    values = [pool[start : start + size] for start in starts]
    chosen_keys = rng.integers(0, len(keys), count).tolist()
    chosen_values = rng.integers(0, len(values), count).tolist()
    return [keys[number] for number in chosen_keys], [values[number] for number in chosen_values]


def _codec_seconds(directory: Path) -> float:
    """Return the time of the compression library alone: each batch opened once, and a quarter of it written.

    A cleaner that keeps one record of each key hardly needs less. Kafka's and ours open most batches twice.
    """
    (path,) = (each for each in directory.glob("*.log") if each.stat().st_size)
    data = memoryview(path.read_bytes())
    at, begin = 0, process_time()
    while at < len(data):
        end = at + LENGTH_OVERHEAD + int.from_bytes(data[at + BATCH_LENGTH : at + LENGTH_OVERHEAD], "big")
        codec = Codec(data[at + ATTRIBUTES + 1] & _CODEC_BITS)
        records = memoryview(decompress(codec, data[at + BATCH_OVERHEAD : end]))
        compress(codec, records[: len(records) // _RECORDS_PER_KEY])
        at = end
    return process_time() - begin


def _clean(cleaner: Cleaner, directory: Path, count: int) -> float:
    log: UnifiedLog = opened(directory, recovery_point=count)
    log.update_high_watermark(log.log_end_offset)
    begin = process_time()
    clean(cleaner, log, count)
    seconds = process_time() - begin
    log.close_handles()
    return seconds


def _clean_with_kafka(kafka: JavaProcess, directory: Path, count: int) -> float:
    response = kafka.request(os.fsencode(directory), _LIMIT_SECONDS)
    if response["records_read"] != count:
        raise LoadError(f"Kafka cleaned {response['records_read']} of {count} records")
    return float(response["process_cpu_seconds"])
