"""What a task counts on its way, by the names that reports use."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from object_format.record_batch.decompression import CodecTimers
from object_store.accounting import RequestKind
from object_store.interface import Purpose
from spark_jobs.task.peak_memory import peak_rss_bytes, reset_peak

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.clock import Clock
    from object_store.interface import ForwardStream, ObjectStore


class TimedSource:
    """A stream whose reads count as time in the object store."""

    def __init__(self, source: ForwardStream, counts: TaskCounts) -> None:
        self._source = source
        self._counts = counts

    def readinto(self, target: memoryview) -> int:
        """As the stream's."""
        with self._counts.timed("read_objects_ms"):
            return self._source.readinto(target)


class TaskCounts:
    """Counts from here on; `store`, if the task has one, is its own, so that its requests are the task's."""

    def __init__(self, store: ObjectStore | None, clock: Clock) -> None:
        reset_peak()
        self._store = store
        self._clock = clock
        self._before = store.counts.snapshot() if store is not None else None
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.codec_timers = CodecTimers(
            partial(self.timed, "decompress_ms"), partial(self.timed, "compress_ms")
        )

    def add(self, name: str, count: int) -> None:
        """Count up."""
        self._counts[name] += count

    def at_least(self, name: str, count: int) -> None:
        """Note what may be the largest of its name so far."""
        self._counts[name] = max(self._counts[name], count)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count the block's time; `name` ends in `_ms`."""
        begin = self._clock.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += self._clock.monotonic() - begin

    def timed_source(self, source: ForwardStream) -> TimedSource:
        """Count the time that reading from `source` takes."""
        return TimedSource(source, self)

    def finish(self) -> dict[str, int]:
        """All of them, with the store's requests and the peak of memory."""
        # Codecs run inside of kernels' time, which is to be that of the rest.
        self._seconds["kernels_ms"] -= self._seconds["decompress_ms"] + self._seconds["compress_ms"]
        self._counts.update({name: round(1000 * each) for name, each in self._seconds.items()})
        if self._store is not None and self._before is not None:
            did = self._store.counts.snapshot() - self._before
            gets = did.of(RequestKind.GET, Purpose.COMPACTION)
            everything = did.of(purpose=Purpose.COMPACTION)
            self._counts["get_requests"] = gets.requests - gets.resumes
            self._counts["resumes"] = gets.resumes
            self._counts["retries"] = everything.retries
            self._counts["bytes_in"] = everything.bytes_in
            self._counts["bytes_out"] = everything.bytes_out
        self._counts["peak_rss_bytes"] = peak_rss_bytes()
        return dict(self._counts)
