"""SIGINT (^C) and SIGTERM, as KeyboardInterrupt at points where a command can stop in order.

While jobs are claimed, the exception must not be raised between the claim of a job and its release, nor
within Spark's own code.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Self

from core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

    from core.clock import Clock

# A tool that signals a process and its group sends the same interrupt twice.
_SAME_SECONDS = 1.0
# The system may give a signal to another thread, as after a freeze. Python handles it in the main thread, and
# only when that wakes up.
_WAKE_SECONDS = 1.0
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


class Interrupts:
    """Context manager that handles SIGINT and SIGTERM in the main thread while it is open.

    The first signal prints "stopping…" and raises KeyboardInterrupt. Within a `shielded` block it only sets
    `requested`, and KeyboardInterrupt is raised at the end of the block. A further signal, at least
    `_SAME_SECONDS` later, raises KeyboardInterrupt in any case.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.requested = threading.Event()
        self._clock = clock or SystemClock()
        self._first = 0.0
        self._shields = 0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.getsignal(number)
            signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as getsignal gave it

    @contextlib.contextmanager
    def shielded(self) -> Iterator[threading.Event]:
        """Defer KeyboardInterrupt to the end of the block; the block should end once the event is set."""
        self._shields += 1
        try:
            yield self.requested
        finally:
            self._shields -= 1
        if self.requested.is_set() and not self._shields:
            raise KeyboardInterrupt

    def wait(self, seconds: float = math.inf) -> bool:
        """Wait in the main thread until a signal arrives; return False if none did in that time."""
        until = self._clock.monotonic() + seconds
        while not self.requested.wait(min(max(until - self._clock.monotonic(), 0), _WAKE_SECONDS)):
            if self._clock.monotonic() >= until:
                return False
        return True

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        now = self._clock.monotonic()
        if not self.requested.is_set():
            self.requested.set()
            self._first = now
            # Not through a stream: the signal may have interrupted a write to it.
            with contextlib.suppress(OSError):
                os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, "stopping…\n".encode())
            if self._shields:
                return
        elif now - self._first < _SAME_SECONDS:
            return
        raise KeyboardInterrupt


@contextlib.contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block where SIGINT or SIGTERM would silently end the process.

    While a module is being loaded, the process ends as before: there the exception could get lost or turn
    into another error.
    """
    silent = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        silent = []
    try:
        for number in silent:
            signal.signal(number, _interrupt)
        yield
    finally:
        for number in silent:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_SYSTEM:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        frame = frame.f_back
    raise KeyboardInterrupt


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Run the handlers of SIGINT and SIGTERM only after the block, which must be short.

    Use it around C functions that check for signals and report a handler's exception as an error of their
    own. Handlers run only in the main thread, so in other threads there is nothing to defer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in found.items() if callable(handler)}
    try:
        for number in before:
            signal.signal(number, lambda number, _frame: received.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for each in received:
            signal.raise_signal(each)
