"""A bounded, reused window on bytes that arrive in order and may end at any byte."""

from __future__ import annotations

from typing import Protocol

READ_SIZE = 1024 * 1024


class ByteSource(Protocol):
    """Where a forward reader's bytes come from: an object's stream, a file, a socket."""

    def readinto(self, target: memoryview, /) -> int:
        """Fill up to len(target) bytes of `target`; 0 only at the end."""
        ...


class StreamBuffer:
    """Reads a source in large steps and lends views of what arrived.

    The buffer has `read_size` bytes. It grows only for a view that is longer, only when it is full, and then
    at most to twice of what has arrived of that view: a length that nobody delivers costs nothing. Afterwards
    it shrinks back. A view is valid until the next call.
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
        """Bytes allocated."""
        return len(self._buffer)

    def ensure(self, length: int) -> int:
        """Have the next `length` bytes at hand if the source has them; returns how many of them are."""
        if self._end - self._start < length:
            self._make_space(length)
            while self._end < length and self._read_more(length):
                pass
        return min(self._end - self._start, length)

    def peek(self, length: int) -> memoryview:
        """A view of the next `length` bytes, which `ensure` has found."""
        return self._view[self._start : self._start + length]

    def advance(self, length: int) -> None:
        """Be done with `length` bytes that are at hand."""
        self._start += length
        self.position += length

    def read_available(self, limit: int) -> memoryview:
        """Up to `limit` of the next bytes, whatever is at hand or comes in one read; empty at the end."""
        if self._end == self._start:
            self._make_space(1)
            self._read_more(1)
        return self.peek(min(self._end - self._start, limit))

    def shrink(self) -> None:
        """Let go of a buffer that has grown, when nobody is going to read on for a while."""
        left = self._end - self._start
        if len(self._buffer) > self._read_size and left <= self._read_size:
            self._replace(left)

    def _make_space(self, length: int) -> None:
        """Move what is left to the front, and into a buffer of the usual size where it fits."""
        left = self._end - self._start
        if len(self._buffer) != self._read_size and length <= self._read_size:
            self._replace(self._read_size)
        elif self._start > 0:
            self._view[:left] = self._view[self._start : self._end]
        self._start, self._end = 0, left

    def _replace(self, capacity: int) -> None:
        """Take another buffer, with what is left at its front."""
        left = self._end - self._start
        buffer = bytearray(capacity)
        view = memoryview(buffer)
        view[:left] = self._view[
            self._start : self._end
        ]  # by way of the view, for bytearray makes a copy first
        self._buffer, self._view = buffer, view
        self._start, self._end = 0, left

    def _read_more(self, length: int) -> bool:
        """One read behind what is at hand, on the way to `length` bytes; whether anything came."""
        if self._end == len(self._buffer):
            self._replace(min(max(2 * self._end, self._read_size), length))
        count = self._source.readinto(self._view[self._end :])
        self._end += count
        return count > 0
