"""What happens when the process or the machine has no file descriptor or no memory map left.

That says nothing about a disk, so no log directory goes offline for it. A call that needs one of them waits
until there is one. It has not changed anything before, so an operation of several calls continues where it
was, and no log is left half changed. An operation that has not begun to change anything is refused instead
(`refusing`, `reserving`), so that it does not hold up the threads of requests.

Calls wait only while an agent serves its logs. While it opens or closes them, they raise the error.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import structlog

from core.clock import SystemClock
from local_tier.errors import ProcessLimitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_RETRY_SECONDS: Final = 0.05
_WARNING_SECONDS: Final = 10.0


class _Lack(NamedTuple):
    """What is missing: the event of the warning, the text of the error, and the remedy."""

    event: str
    message: str
    remedy: str


_NO_DESCRIPTOR: Final = _Lack(
    "local_logs_lack_file_descriptors",
    "no file descriptor is left",
    "raise the limit of open files (ulimit -n, LimitNOFILE=), or let fewer clients connect",
)
_NO_MAP: Final = _Lack(
    "local_logs_lack_memory_maps",
    "no memory map is left",
    "raise vm.max_map_count, or give the agent more address space",
)
_LACKS: Final = {errno.EMFILE: _NO_DESCRIPTOR, errno.ENFILE: _NO_DESCRIPTOR, errno.ENOMEM: _NO_MAP}


class Reserve(NamedTuple):
    """The numbers of file descriptors and memory maps that an operation takes at a time."""

    descriptors: int
    maps: int


class ProcessLimits:
    """Decides for each thread whether a call waits for a descriptor or a map. Any thread may call."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._users = 0
        self._ended = threading.Condition(self._lock)
        self._thread = threading.local()
        self._warned_at: dict[_Lack, float] = {}
        self._reserve_lock = threading.Lock()
        self._reserved = Reserve(0, 0)
        self.waiting = 0
        """The number of calls that wait."""

    def begin(self) -> None:
        """Let calls wait from now on. Several agents of a process may call."""
        with self._lock:
            self._users += 1

    def end(self) -> None:
        """Undo one `begin`. After the last one, calls that wait raise their errors."""
        with self._lock:
            self._users -= 1
            self._ended.notify_all()

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Raise ProcessLimitError in calls of this thread that would wait. The caller changes nothing."""
        before = getattr(self._thread, "refuses", False)
        self._thread.refuses = True
        try:
            yield
        finally:
            self._thread.refuses = before

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of a call that needs a descriptor or a map, once there is one."""
        while True:
            try:
                return call()
            except OSError as error:
                lack = _LACKS.get(error.errno or 0)
                if lack is None or not self._may_repeat(lack, error):
                    raise

    @contextmanager
    def reserving(self, reserve: Reserve) -> Iterator[None]:
        """Raise ProcessLimitError if less is left than `reserve`, so that the caller changes nothing.

        Operations at the same time need their reserves together. Otherwise each could get a part of what it
        needs, and wait for the others to return theirs. Threads without a reserve may take what is left: the
        caller waits then.
        """
        with self._reserve_lock:
            needed = Reserve(*map(sum, zip(self._reserved, reserve, strict=True)))
            self._require(needed)
            self._reserved = needed
        try:
            yield
        finally:
            with self._reserve_lock:
                remaining = self._reserved
                self._reserved = Reserve(
                    remaining.descriptors - reserve.descriptors, remaining.maps - reserve.maps
                )

    def _require(self, needed: Reserve) -> None:
        """Raise ProcessLimitError if less is left."""
        with self.refusing(), ExitStack() as taken:
            for _ in range(needed.descriptors):
                taken.callback(os.close, self.run(_open_root))
            for _ in range(needed.maps):
                taken.callback(self.run(_map_page).close)

    def _may_repeat(self, lack: _Lack, error: OSError) -> bool:
        """Wait for a moment. Return False if calls do not wait."""
        with self._lock:
            now = self._clock.monotonic()
            if now >= self._warned_at.get(lack, float("-inf")) + _WARNING_SECONDS:
                self._warned_at[lack] = now
                _log.warning(lack.event, reason=str(error), remedy=lack.remedy)
            if getattr(self._thread, "refuses", False):
                raise ProcessLimitError(lack.message, remedy=lack.remedy) from error
            if not self._users:
                return False
            self.waiting += 1
            try:
                self._ended.wait(_RETRY_SECONDS)
            finally:
                self.waiting -= 1
        return True


def _open_root() -> int:
    return os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _map_page() -> mmap.mmap:
    """Map shared memory. The kernel does not merge it with other maps, so that it counts as one."""
    return mmap.mmap(-1, mmap.PAGESIZE)


process_limits: Final = ProcessLimits()
"""The limits are those of the process or of the machine, so all file systems share this."""
