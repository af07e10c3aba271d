"""Answers on their way into a connection's transport, small ones that are ready together in one write.

When a file is committed, all requests that waited for it are answered in a row. Each write of its own is a
call into the kernel that wakes the client, which takes longer than it took to make the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.kafka.codec.writing import Buffers

_MOST_BYTES = 64 * 1024
"""Held back at the most; what goes beyond leaves at once."""
_LOOKS = 4
"""At what is left for a slow reader, in the time in which some of it must leave."""


class Outgoing:
    """What a transport is yet to be given, in order. Belongs to the event loop.

    What is held back leaves in the loop's next turn at the latest.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._parts: Buffers = []
        self._size = 0
        self._flush: asyncio.Handle | None = None

    def write(self, buffers: Buffers) -> None:
        """Hand over what is held back, and these behind it."""
        if self._parts:
            self.hold(buffers)
            self.flush()
        elif buffers:
            self._transport.writelines(buffers)

    def hold(self, buffers: Buffers) -> None:
        """Hand these over soon: another answer is about to follow."""
        self._parts += buffers
        self._size += sum([len(each) for each in buffers])
        if self._size > _MOST_BYTES:
            self.flush()
        elif self._flush is None and self._parts:
            self._flush = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Hand over what is held back."""
        parts, is_small = self._parts, self._size <= _MOST_BYTES
        self.drop()
        if not parts or self._transport.is_closing():
            return
        if is_small:  # one buffer goes to the socket at once, many by way of a queue
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)

    async def drained(self, writable: asyncio.Event, seconds: float) -> bool:
        """Wait until enough has left for `writable` to be set; not after `seconds` in which nothing did."""
        silent, left = 0, -1
        while not writable.is_set():
            before, left = left, self._transport.get_write_buffer_size()
            silent = silent + 1 if left == before else 0
            if silent == _LOOKS:
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds / _LOOKS):
                    await writable.wait()
        return True

    def drop(self) -> None:
        """Forget what is held back: the connection is lost."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        self._parts = []
        self._size = 0
