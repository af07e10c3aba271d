"""Responses on their way to a client: the queue entry of each, and the writer into the transport.

A commit of an ingestion file completes many produce requests together. The writer joins small responses that
are ready together into one write. A separate write for each would be a system call that wakes the client, and
takes longer than making the response.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import select
import sys
import termios
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent.kafka.api_definition import RetainedBuffers
from agent.read.fetch_memory import SMALL_RESPONSE

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.kafka.codec.writing import Buffers
    from agent.kafka.connection.limits import SlowClientPolicy
    from agent.kafka.dispatcher import Response

_SMALL_RESPONSE_BYTES = SMALL_RESPONSE + 64 * 1024  # the batches, and the fields around them
_MAX_BUFFERED_BYTES = 64 * 1024


@dataclass(slots=True)
class QueuedResponse:
    """A response that has not left yet, and the memory that its connection's budget counts for it.

    `counted_bytes` are in the budget. `ready_bytes` is the size of a response that waits for earlier ones.
    """

    response: Response
    counted_bytes: int = 0
    ready_bytes: int = 0
    is_written: bool = False

    @property
    def retains_memory(self) -> bool:
        """True if the response itself retains memory of another budget."""
        return isinstance(self.response, RetainedBuffers)

    def count(self, request_bytes: int) -> None:
        """Set the counted bytes: the request's while the response is pending, otherwise the response's."""
        if callable(self.response):
            self.counted_bytes = request_bytes
        elif isinstance(self.response, list):
            self.counted_bytes = self.ready_bytes = _size(self.response)
        elif self.response is not None:  # another budget counts what it retains
            self.ready_bytes = _size(self.response.buffers)

    def write_to(self, writer: ResponseWriter, *, more_follow: bool = False) -> None:
        """Hand the response to the writer, once. With `more_follow` the writer may buffer it.

        A response that retains memory is written at once, and retains the memory until its bytes have left.
        """
        if self.is_written:
            return
        self.is_written = True
        if isinstance(self.response, RetainedBuffers):
            writer.write(self.response.buffers)
        elif isinstance(self.response, list):  # an empty list is the response to a request with acks 0
            (writer.write_soon if more_follow else writer.write)(self.response)

    def release(self) -> None:
        """Release the memory that the response itself retains."""
        if isinstance(self.response, RetainedBuffers):
            self.response.release()
            self.response = None

    def release_if_small(self) -> None:
        """Release the memory of a small response once it is written: the transport has its own copy."""
        if (
            isinstance(self.response, RetainedBuffers)
            and _size(self.response.buffers) <= _SMALL_RESPONSE_BYTES
        ):
            self.release()


class _HasFileno(Protocol):
    """A socket, or uvloop's stand-in for one."""

    def fileno(self) -> int:
        """Return the file descriptor; -1 once the socket is closed."""
        ...


class ResponseWriter:
    """Ordered writes to one transport. Belongs to the event loop.

    Buffered responses leave at the latest in the next iteration of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._socket: _HasFileno | None = transport.get_extra_info("socket")
        self._parts: Buffers = []
        self._size = 0
        self._flush: asyncio.Handle | None = None

    def write(self, buffers: Buffers) -> None:
        """Write the buffered responses, then these buffers."""
        if self._parts:
            self.write_soon(buffers)
            self.flush()
        elif buffers:
            self._transport.writelines(buffers)

    def write_soon(self, buffers: Buffers) -> None:
        """Buffer these, because another response is about to follow; flush beyond `_MAX_BUFFERED_BYTES`."""
        self._parts += buffers
        self._size += sum([len(each) for each in buffers])
        if self._size > _MAX_BUFFERED_BYTES:
            self.flush()
        elif self._flush is None and self._parts:
            self._flush = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write the buffered responses."""
        parts, is_small = self._parts, self._size <= _MAX_BUFFERED_BYTES
        self.discard()
        if not parts or self._transport.is_closing():
            return
        if is_small:  # the transport sends a single buffer immediately, but queues a list of them
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)

    async def wait_until_writable(
        self, writable: asyncio.Event, policy: SlowClientPolicy, retains_memory: Callable[[], bool]
    ) -> bool:
        """Wait for `writable`; return False if the client exceeds the slow-client policy first."""
        checks, unsent = 0, -1
        while not writable.is_set():
            before, unsent = unsent, self.unsent_bytes()
            checks = checks + 1 if unsent == before else 0
            if policy.is_exceeded(checks, retains_memory=retains_memory()):
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(policy.check_seconds):
                    await writable.wait()
        return True

    def unsent_bytes(self) -> int:
        """Return the bytes that the client has not acknowledged: the transport's and the kernel's.

        The transport's buffer alone is too coarse. The transport hands a megabyte at a time to the kernel,
        and a slow reader may take minutes to read that much.
        """
        size = self._transport.get_write_buffer_size()
        return size if self._socket is None else size + _kernel_buffer_bytes(self._socket)

    def peer_has_closed(self) -> bool:
        """Return True if the peer sends nothing more: it has closed its side, or the connection is broken."""
        return self._socket is not None and _is_closed_by_peer(self._socket)

    def discard(self) -> None:
        """Drop the buffered responses."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        self._parts = []
        self._size = 0


def _kernel_buffer_bytes(connected: _HasFileno) -> int:
    """Return the bytes in the kernel's send buffer; 0 where the platform does not report them."""
    count = bytearray(4)
    try:
        fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, count)
    except (OSError, ValueError):
        return 0
    return int.from_bytes(count, sys.byteorder)


def _is_closed_by_peer(connected: _HasFileno) -> bool:
    poll = select.poll()
    try:
        poll.register(connected.fileno(), getattr(select, "POLLRDHUP", 0))  # errors are always reported
    except (OSError, ValueError):
        return True  # the socket is closed here
    return bool(poll.poll(0))


def _size(buffers: Buffers) -> int:
    return sum([len(each) for each in buffers])
