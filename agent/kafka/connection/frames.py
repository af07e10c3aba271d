"""Cuts what a socket delivers into frames: four bytes of length, then a request.

All connections of a server receive into one buffer, as each delivery is taken out of it at once: an idle
connection costs next to nothing. A frame that is not complete yet gets a buffer of its own, and what is still
to come of it is received right there. Behind a large frame another one is expected, and only its begin is
received at first. So a large request is hardly copied, and a small one once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agent.kafka.codec import MalformedMessageError

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH_BYTES = 4
_MIN_FRAME = 8  # API key, version, correlation id
RECEIVE_BYTES = 256 * 1024
_LARGE_FRAME = 32 * 1024  # copying it takes longer than another call to receive
_BEGIN_BYTES = 2 * 1024


class FrameReceiver:
    """The frames of one connection.

    `admit` is asked before room is made for a frame of which a part is yet to come; when it says no,
    `is_blocked` is set and nothing may be received until `retry` says that the room was made after all.
    `deliver` gets each frame, without its length, in a writable buffer that is the frame's alone.
    """

    def __init__(
        self,
        shared: memoryview,
        *,
        limit: int,
        admit: Callable[[int], bool],
        deliver: Callable[[memoryview], None],
    ) -> None:
        self._shared = shared
        self._begin = shared[:_BEGIN_BYTES]
        self._expects_large = False
        self._limit = limit
        self._admit = admit
        self._deliver = deliver
        self._head = bytearray()
        self._frame: memoryview | None = None
        self._filled = 0
        self._blocked: tuple[int, bytes] | None = None

    @property
    def is_blocked(self) -> bool:
        """Whether a frame waits for room."""
        return self._blocked is not None

    @property
    def is_within_frame(self) -> bool:
        """Whether a part of a frame has come, and not all of it."""
        return self._frame is not None or self._blocked is not None or bool(self._head)

    def room(self) -> memoryview:
        """Where to receive; what comes there must be told by `received` before anyone else receives."""
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._begin if self._expects_large else self._shared

    def received(self, count: int) -> None:
        """Take `count` bytes that were received; MalformedMessageError for a length that cannot be."""
        if self._frame is None:
            self._cut(self._shared[:count])
            return
        self._filled += count
        self._finish_if_full()

    def retry(self) -> bool:
        """Ask again for the room that was denied; whether it is there now."""
        if self._blocked is None:
            return True
        length, begun = self._blocked
        if not self._admit(length):
            return False
        self._blocked = None
        self._start(length, memoryview(begun))
        return True

    def _cut(self, data: memoryview) -> None:
        while data:
            missing = _LENGTH_BYTES - len(self._head)
            self._head += data[:missing]
            data = data[missing:]
            if len(self._head) < _LENGTH_BYTES:
                return
            length = int.from_bytes(self._head, "big", signed=True)
            self._head.clear()
            if not _MIN_FRAME <= length <= self._limit:
                raise MalformedMessageError(
                    f"a request of {length} bytes was announced; {_MIN_FRAME} to {self._limit} are taken"
                )
            part, data = data[:length], data[length:]
            if len(part) < length and not self._admit(length):
                self._blocked = (length, bytes(part))
                return
            if length < _LARGE_FRAME and len(part) == length:
                self._expects_large = False
                self._deliver(memoryview(bytearray(part)))
            else:
                self._start(length, part)

    def _start(self, length: int, part: memoryview) -> None:
        # Not zeroed first: it is handed over once every byte of it was received.
        self._frame = np.empty(length, np.uint8).data
        self._frame[: len(part)] = part
        self._filled = len(part)
        self._finish_if_full()

    def _finish_if_full(self) -> None:
        frame = self._frame
        if frame is not None and self._filled == len(frame):
            self._frame = None
            self._expects_large = self._filled >= _LARGE_FRAME
            self._filled = 0
            self._deliver(frame)
