"""Answers on their way into a connection's transport, small ones that are ready together in one write.

When a file is committed, all requests that waited for it are answered in a row. Each write of its own is a
call into the kernel that wakes the client, which takes longer than it took to make the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sys
import termios
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.kafka.codec.writing import Buffers
    from agent.kafka.connection.slow_client_policy import SlowClientPolicy

_MAX_BYTES = 64 * 1024
"""Held back at the most; what goes beyond leaves at once."""


class _HasFileno(Protocol):
    """A socket, or what uvloop shows for one."""

    def fileno(self) -> int:
        """Its number; -1 once it is closed."""
        ...


class Outgoing:
    """What a transport is yet to be given, in order. Belongs to the event loop.

    What is held back leaves in the loop's next turn at the latest.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._socket: _HasFileno | None = transport.get_extra_info("socket")
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
        if self._size > _MAX_BYTES:
            self.flush()
        elif self._flush is None and self._parts:
            self._flush = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Hand over what is held back."""
        parts, is_small = self._parts, self._size <= _MAX_BYTES
        self.drop()
        if not parts or self._transport.is_closing():
            return
        if is_small:  # one buffer goes to the socket at once, many by way of a queue
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)

    async def drained(
        self, writable: asyncio.Event, patience: SlowClientPolicy, holds_memory: Callable[[], bool]
    ) -> bool:
        """Wait until enough has left for `writable` to be set; whether that was before patience ended."""
        silent, left = 0, -1
        while not writable.is_set():
            before, left = left, self.left()
            silent = silent + 1 if left == before else 0
            if patience.is_over(silent, holds_memory=holds_memory()):
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience.look_seconds):
                    await writable.wait()
        return True

    def left(self) -> int:
        """Bytes that the client has not taken: the transport's, and those that the system keeps for it.

        The transport gives the system a megabyte at a time, which a slow reader may take minutes to read.
        """
        size = self._transport.get_write_buffer_size()
        return size if self._socket is None else size + _queued(self._socket)

    def drop(self) -> None:
        """Forget what is held back: the connection is lost."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        self._parts = []
        self._size = 0


def _queued(connected: _HasFileno) -> int:
    """Bytes in the system's buffer that the other side has not acknowledged; 0 where nobody tells."""
    count = bytearray(4)
    try:
        fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, count)
    except (OSError, ValueError):
        return 0
    return int.from_bytes(count, sys.byteorder)
