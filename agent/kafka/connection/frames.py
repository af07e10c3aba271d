"""Splits a received byte stream into frames: a length of four bytes, then a request.

All connections of a server receive into one shared buffer, which each delivery empties at once. Therefore an
idle connection needs almost no memory. An incomplete frame gets its own buffer, and the rest of it is
received there. After a large frame another one is likely, so only its first bytes are received into the
shared buffer. As a result, a small request is copied once, and a large request hardly at all.

While memory is scarce, the buffer of an incomplete frame grows with it, and only a few bytes of the next
frame are received before its length is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agent.kafka.codec import MalformedMessageError
from agent.runtime.foreign_protocols import on_kafka_port

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH_BYTES = 4
MIN_FRAME_BYTES = 8  # API key, version, correlation id
RECEIVE_BYTES = 256 * 1024
_LARGE_FRAME_BYTES = 32 * 1024  # copying that much takes longer than another system call to receive
_FIRST_BYTES = 2 * 1024
_MIN_MEMORY_BYTES = 512  # of a frame with its objects, measured as about 400


class ForeignProtocolError(MalformedMessageError):
    """The client does not speak Kafka's protocol, or speaks it over TLS."""


def memory_of(frame: memoryview | None) -> int:
    """Return the bytes that budgets count for a frame in memory."""
    return 0 if frame is None else max(len(frame), _MIN_MEMORY_BYTES)


class FrameReceiver:
    """The frames of one connection.

    `reserve` is called before a buffer is allocated for an incomplete frame, with the bytes that are reserved
    for it already, those that have arrived, and its length. It returns the bytes that are reserved now. If
    these are no more than before, `is_blocked` becomes true, and nothing may be received until `retry`
    succeeds. `has_room` says whether a whole buffer may be received. `deliver` gets each frame, without its
    length, in a writable buffer that belongs to the frame alone.
    """

    def __init__(
        self,
        shared: memoryview,
        *,
        max_frame_bytes: int,
        reserve: Callable[[int, int, int], int],
        has_room: Callable[[], bool],
        deliver: Callable[[memoryview], None],
    ) -> None:
        self._shared = shared
        self._first_bytes = shared[:_FIRST_BYTES]
        self._expects_large = False
        self._min_frame_bytes = MIN_FRAME_BYTES
        self._max_frame_bytes = max_frame_bytes
        self._reserve = reserve
        self._has_room = has_room
        self._deliver = deliver
        self._head = bytearray()
        self._frame: memoryview | None = None
        self._filled = 0
        self._length = 0
        self._blocked: bytes | None = None  # the bytes of a frame that has no buffer yet, if any

    @property
    def is_blocked(self) -> bool:
        """True while a frame waits for memory."""
        return self._blocked is not None

    @property
    def has_buffer(self) -> bool:
        """True while a frame that has arrived in part has a buffer. Nothing else is received then."""
        return self._frame is not None

    def set_bounds(self, min_frame_bytes: int, max_frame_bytes: int) -> None:
        """Change the bounds on the frames whose length has not arrived yet."""
        self._min_frame_bytes, self._max_frame_bytes = min_frame_bytes, max_frame_bytes

    def buffer(self) -> memoryview:
        """Return the buffer to receive into. Call `received` before another connection receives."""
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._first_bytes if self._expects_large or not self._has_room() else self._shared

    def received(self, count: int) -> None:
        """Process `count` received bytes; raise MalformedMessageError for an impossible length."""
        if self._frame is None:
            self._split(self._shared[:count])
            return
        self._filled += count
        self._continue()

    def retry(self) -> bool:
        """Repeat a failed reservation; return True if the receiver is not blocked any more."""
        if self._blocked is None:
            return True
        received, self._blocked = self._blocked, None
        if self._frame is None:
            self._begin(memoryview(received))
        else:
            self._continue()
        return self._blocked is None

    def _split(self, data: memoryview) -> None:
        while data:
            missing = _LENGTH_BYTES - len(self._head)
            self._head += data[:missing]
            data = data[missing:]
            if len(self._head) < _LENGTH_BYTES:
                return
            length = int.from_bytes(self._head, "big", signed=True)
            first = bytes(self._head)
            self._head.clear()
            if not self._min_frame_bytes <= length <= self._max_frame_bytes:
                if (sent := on_kafka_port(first)) is not None:
                    raise ForeignProtocolError(sent)
                raise MalformedMessageError(
                    f"the client announced a request of {length} bytes;"
                    f" requests have {self._min_frame_bytes} to {self._max_frame_bytes} bytes"
                )
            part, data = data[:length], data[length:]
            self._length = length
            if len(part) < length:
                self._begin(part)
            elif length < _LARGE_FRAME_BYTES:
                self._expects_large = False
                self._deliver(memoryview(bytearray(part)))
            else:
                self._resize(length, part)
                self._continue()

    def _begin(self, part: memoryview) -> None:
        """Start an incomplete frame with its first bytes."""
        capacity = self._reserve(0, len(part), self._length)
        if capacity:
            self._resize(capacity, part)
        else:
            self._blocked = bytes(part)

    def _resize(self, capacity: int, part: memoryview) -> None:
        # Not zeroed: the frame is delivered only once every byte of it was received.
        self._frame = np.empty(capacity, np.uint8).data
        self._frame[: len(part)] = part
        self._filled = len(part)

    def _continue(self) -> None:
        """Deliver a complete frame, or make room for more of an incomplete one."""
        frame = self._frame
        if frame is None or self._filled < len(frame):
            return
        if self._filled < self._length:
            capacity = self._reserve(len(frame), self._filled, self._length)
            if capacity > len(frame):
                self._resize(capacity, frame)
            else:
                self._blocked = b""
            return
        self._frame = None
        self._expects_large = self._filled >= _LARGE_FRAME_BYTES
        self._filled = 0
        self._deliver(frame)
