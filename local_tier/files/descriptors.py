"""What happens when the process or the machine has no file descriptor left.

That says nothing about a disk, so no log directory goes offline for it. A call that needs a descriptor waits
until there is one. It has not changed anything before, so an operation of several calls continues where it
was, and no log is left half changed. An operation that has not begun to change anything is refused instead
(`refusing`, `require_descriptors`), so that it does not hold up the threads of requests.

Calls wait only while an agent serves its logs. While it opens or closes them, they raise the error.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from core.clock import SystemClock
from local_tier.errors import NoDescriptorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})
_RETRY_SECONDS: Final = 0.05
_WARNING_SECONDS: Final = 10.0
_REMEDY: Final = "raise the limit of open files (ulimit -n, LimitNOFILE=), or let fewer clients connect"


class DescriptorWait:
    """Decides for each thread whether a call waits for a descriptor. Any thread may call."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._users = 0
        self._ended = threading.Condition(self._lock)
        self._thread = threading.local()
        self._warned_at = float("-inf")
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
        """Raise NoDescriptorError in calls of this thread that would wait. The caller changes nothing."""
        before = getattr(self._thread, "refuses", False)
        self._thread.refuses = True
        try:
            yield
        finally:
            self._thread.refuses = before

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of a call that needs a descriptor, once there is one."""
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in _EXHAUSTED or not self._may_repeat(error):
                    raise

    def _may_repeat(self, error: OSError) -> bool:
        """Wait for a moment. Return False if calls do not wait."""
        with self._lock:
            now = self._clock.monotonic()
            if now >= self._warned_at + _WARNING_SECONDS:
                self._warned_at = now
                _log.warning("local_logs_lack_file_descriptors", reason=str(error), remedy=_REMEDY)
            if getattr(self._thread, "refuses", False):
                raise NoDescriptorError("no file descriptor is left", remedy=_REMEDY) from error
            if not self._users:
                return False
            self.waiting += 1
            try:
                self._ended.wait(_RETRY_SECONDS)
            finally:
                self.waiting -= 1
        return True


process_descriptors: Final = DescriptorWait()
"""The limit is one of the process or of the machine, so all file systems share this."""


def _take() -> int:
    return os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def require_descriptors(count: int) -> None:
    """Raise NoDescriptorError if fewer than `count` descriptors are left, so that the caller changes nothing.

    Other threads may take them afterwards: the caller waits then.
    """
    taken: list[int] = []
    try:
        with process_descriptors.refusing():
            while len(taken) < count:
                taken.append(process_descriptors.run(_take))
    finally:
        for descriptor in taken:
            with suppress(OSError):
                os.close(descriptor)
