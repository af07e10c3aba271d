"""Bounded and reused buffer for bytes that arrive in order."""

from __future__ import annotations

from typing import Protocol

READ_SIZE = 1024 * 1024


class ByteSource(Protocol):
    """Source of bytes for a forward reader: an object's stream, a file, or a socket."""

    def readinto(self, target: memoryview, /) -> int:
        """Write up to len(target) bytes to `target`, and return their number; 0 only at the end."""
        ...


class StreamBuffer:
    """Reads a source in large steps, and returns views of received bytes.

    The buffer has `read_size` bytes. It grows only if it is full and a longer view is requested, and then to
    at most twice the received part of that view: a false length does not cost memory. Afterwards it shrinks
    again. A view is valid until the next call.
    """

    def __init__(self, source: ByteSource, read_size: int) -> None:
        self._source = source
        self._read_size = max(read_size, 1)
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self.position = 0

    @property
    def capacity(self) -> int:
        """Allocated size in bytes."""
        return len(self._buffer)

    def ensure(self, length: int) -> int:
        """Buffer the next `length` bytes if the source has them; return how many are available."""
        if self._end - self._start < length:
            self._make_space(length)
            while self._end < length and self._read_more(length):
                pass
        return min(self._end - self._start, length)

    def peek(self, length: int) -> memoryview:
        """Return a view of the next `length` bytes, which `ensure` has made available."""
        return self._view[self._start : self._start + length]

    def advance(self, length: int) -> None:
        """Consume `length` available bytes."""
        self._start += length
        self.position += length

    def read_available(self, limit: int) -> memoryview:
        """Return up to `limit` of the next bytes, after at most one read; empty at the end."""
        if self._end == self._start:
            self._make_space(1)
            self._read_more(1)
        return self.peek(min(self._end - self._start, limit))

    def shrink(self) -> None:
        """Release a buffer that has grown, before a pause in reading."""
        left = self._end - self._start
        if len(self._buffer) > self._read_size and left <= self._read_size:
            self._replace(left)

    def _make_space(self, length: int) -> None:
        """Move the remaining bytes to the start, and into a buffer of normal size if `length` fits."""
        left = self._end - self._start
        if len(self._buffer) != self._read_size and length <= self._read_size:
            self._replace(self._read_size)
        elif self._start > 0:
            self._view[:left] = self._view[self._start : self._end]
        self._start, self._end = 0, left

    def _replace(self, capacity: int) -> None:
        """Allocate another buffer, with the remaining bytes at its start."""
        left = self._end - self._start
        buffer = bytearray(capacity)
        view = memoryview(buffer)
        # Through a view: slice assignment of a bytearray would copy the bytes twice.
        view[:left] = self._view[self._start : self._end]
        self._buffer, self._view = buffer, view
        self._start, self._end = 0, left

    def _read_more(self, length: int) -> bool:
        """Read once towards `length` bytes; return False at the end of the source."""
        if self._end == len(self._buffer):
            self._replace(min(max(2 * self._end, self._read_size), length))
        count = self._source.readinto(self._view[self._end :])
        self._end += count
        return count > 0
