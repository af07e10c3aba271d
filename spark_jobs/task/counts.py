"""Counters of one task, under the names that reports use."""

from __future__ import annotations

import re
import resource
import sys
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from object_format.record_batch.decompression import CodecTimers
from object_store.accounting import Purpose, RequestKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.clock import Clock
    from object_store.interface import ForwardStream, ObjectStore

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_HIGH_WATER = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


class TimedSource:
    """Stream whose read time counts as time in the object store."""

    def __init__(self, source: ForwardStream, counts: TaskCounts) -> None:
        self._source = source
        self._counts = counts

    def readinto(self, target: memoryview) -> int:
        """Read into `target`, as the wrapped stream does."""
        with self._counts.timed("read_objects_ms"):
            return self._source.readinto(target)


class TaskCounts:
    """Counters from construction on.

    `store`, if given, belongs to the task alone, so that its requests are the task's.
    """

    def __init__(self, store: ObjectStore | None, clock: Clock) -> None:
        reset_peak()
        self._clock = clock
        self._requests = None if store is None else (store.counts, store.counts.snapshot())
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.codec_timers = CodecTimers(
            partial(self.timed, "decompress_ms"), partial(self.timed, "compress_ms")
        )

    def add(self, name: str, count: int) -> None:
        """Add `count` to the counter."""
        self._counts[name] += count

    def add_aborted(self, records: int) -> None:
        """Count records of aborted transactions: they are read and dropped."""
        for name in ("records_in", "records_dropped", "records_aborted"):
            self.add(name, records)

    def at_least(self, name: str, count: int) -> None:
        """Raise the counter to `count` if it is lower; for peaks."""
        self._counts[name] = max(self._counts[name], count)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the duration of the block to the counter; `name` ends in `_ms`."""
        begin = self._clock.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += self._clock.monotonic() - begin

    def timed_source(self, source: ForwardStream) -> TimedSource:
        """Wrap `source` so that its read time is counted."""
        return TimedSource(source, self)

    def finish(self) -> dict[str, int]:
        """Return all counters, including the store's requests and the peak of resident memory."""
        # Codecs run inside the time of kernels: subtract them, so that the figures add up.
        self._seconds["kernels_ms"] -= self._seconds["decompress_ms"] + self._seconds["compress_ms"]
        self._counts.update({name: round(1000 * each) for name, each in self._seconds.items()})
        if self._requests is not None:
            counted, before = self._requests
            made = counted.snapshot() - before
            gets = made.of(RequestKind.GET, Purpose.COMPACTION)
            everything = made.of(purpose=Purpose.COMPACTION)
            self._counts["get_requests"] = gets.requests - gets.resumes - self._counts["index_reads"]
            self._counts["resumes"] = gets.resumes
            self._counts["retries"] = everything.retries
            self._counts["bytes_in"] = everything.bytes_in
            self._counts["bytes_out"] = everything.bytes_out
        self._counts["peak_rss_bytes"] = peak_rss_bytes()
        return dict(self._counts)


def reset_peak() -> None:
    """Restart the measurement of peak memory, if the system can: a worker runs many tasks."""
    try:
        _CLEAR_REFS.write_text("5")  # proc(5): resets the peak resident set size
    except OSError:
        return


def peak_rss_bytes() -> int:
    """Return the peak resident set since `reset_peak`, or since the process started."""
    try:
        found = _HIGH_WATER.search(_STATUS.read_text())
    except OSError:
        found = None
    if found:
        return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
