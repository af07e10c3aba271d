"""How fast the local tier's cleaner is; part of `benchmarks.local_tier`."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from core.clock import SystemClock
from core.ids import SeededIds
from local_tier.cleaner.cleaner import Cleaner, CleanerStats, Throttler
from local_tier.cleaner.log_cleaner import CleanerConfig
from local_tier.cleaner.log_to_clean import LogToClean
from local_tier.files.file_system import RealFileSystem
from object_format.codecs.codec import Codec
from object_format.dedupe import KeyTable
from object_format.record_batch.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from local_tier.log.unified_log import UnifiedLog

_VALUE = bytes(80)
_BATCH = 160
_KEYS_PER_RECORD = 0.25
_REQUEST = 64


def measure_cleaner(
    root: Path, opened: Callable[[Path], UnifiedLog], count: int, rounds: int
) -> dict[str, float]:
    """Clean a log that is completely dirty: records and bytes per second, and the retained share.

    Records of 100 bytes are in batches of 16 KiB. There are a quarter as many keys as records, with uniform
    probability, so that almost every batch is opened, filtered and rewritten.
    """
    requests, cleaner = _requests(count), new_cleaner()
    taken: list[float] = []
    reading: list[float] = []
    size = kept = 0
    for round_number in range(rounds + 1):
        log = opened(root / f"cleaned-{round_number}")
        for request in requests:
            log.append_as_leader(bytearray(request), 0)
        make_cleanable(log)
        size = log.size
        begin = time.perf_counter()
        stats = clean(cleaner, log, count)
        if round_number:
            taken.append(time.perf_counter() - begin)
            reading.append(stats.index_seconds)
        kept = stats.records_written
        log.delete()
    seconds = statistics.median(taken)
    return {
        "records_per_s": count / seconds,
        "mb_per_s": size / seconds / 1e6,
        "survivors_records_per_s": count / statistics.median(reading),
        "share_kept": kept / count,
    }


def make_cleanable(log: UnifiedLog) -> None:
    """Close the segment that is written to, and let everything count as replicated."""
    log.roll()
    log.flush()
    log.update_high_watermark(log.log_end_offset)


def clean(cleaner: Cleaner, log: UnifiedLog, count: int) -> CleanerStats:
    """Clean a whole log of `count` records."""
    end, stats = cleaner.clean(
        LogToClean(
            log=log,
            first_dirty_offset=0,
            first_uncleanable_offset=log.log_end_offset,
            clean_bytes=0,
            cleanable_bytes=log.size,
            must_clean=True,
        )
    )
    if end != log.log_end_offset or stats.records_read != count:
        raise RuntimeError(f"cleaned up to {end} only: {stats}")
    return stats


def new_cleaner() -> Cleaner:
    """Return a cleaner with default settings; a thread of the log cleaner keeps its own for all logs."""
    config, clock = CleanerConfig(), SystemClock()
    return Cleaner(
        file_system=RealFileSystem(),
        table=KeyTable(config.dedupe_buffer_bytes),
        window_bytes=config.io_buffer_bytes,
        throttler=Throttler(clock, config.io_max_bytes_per_second),
        clock=clock,
        ids=SeededIds(1, clock),
        check_done=lambda _: None,
    )


def _requests(count: int) -> list[bytes]:
    numbers = np.random.default_rng(5).integers(0, int(count * _KEYS_PER_RECORD), count)
    keys = [b"%012d" % number for number in numbers.tolist()]
    return list(make_requests(keys, [_VALUE] * count, batch_records=_BATCH))


def make_requests(
    keys: Sequence[bytes], values: Sequence[bytes], *, batch_records: int, codec: Codec = Codec.NONE
) -> Iterator[bytes]:
    """Yield the batches of records, many at a time."""
    now = SystemClock().now_ms()
    step = batch_records * _REQUEST
    for first in range(0, len(keys), step):
        yield b"".join(
            encode_batch(
                [now] * len(keys[start : start + batch_records]),
                keys[start : start + batch_records],
                values[start : start + batch_records],
                codec=codec,
            )
            for start in range(first, min(first + step, len(keys)), batch_records)
        )
