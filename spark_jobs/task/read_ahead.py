"""Reads the next bytes of an input in another thread while the task computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from object_store.interface import ForwardStream
    from spark_jobs.task.counts import TaskCounts


class ReadAhead:
    """Stream that holds up to `size` bytes of `source` before they are requested.

    One read is in flight at a time, in `thread`. Its error is raised by `readinto`. Only the time that
    `readinto` waits counts as time in the object store. For one thread at a time.
    """

    def __init__(self, source: ForwardStream, thread: Executor, size: int, counts: TaskCounts) -> None:
        self._source = source
        self._thread = thread
        self._view = memoryview(bytearray(size))
        self._ready = self._view[:0]
        self._reading: Future[int] | None = None
        self._counts = counts

    def start(self) -> None:
        """Read the next bytes, unless they are being read or there are unread ones."""
        if self._reading is None and not self._ready:
            self._reading = self._thread.submit(self._source.readinto, self._view)

    def readinto(self, target: memoryview) -> int:
        """Fill up to len(target) bytes; return 0 only at the end of the range, or for an empty target."""
        if not self._ready:
            self.start()
            self._wait()
        count = min(len(target), len(self._ready))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        if count:
            self.start()
        return count

    def close(self) -> None:
        """Wait for the read in flight, and close the source; do not raise the error of the read."""
        reading, self._reading = self._reading, None
        if reading is not None and not reading.cancel():
            reading.exception()
        self._source.close()

    def _wait(self) -> None:
        reading, self._reading = self._reading, None
        assert reading is not None
        with self._counts.timed("read_objects_ms"):
            self._ready = self._view[: reading.result()]
