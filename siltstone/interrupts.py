"""^C and SIGTERM: a KeyboardInterrupt for every command, and in order in every phase of those that take long.

Where jobs are claimed it must not fall between the claim of one and its release, nor into Spark's own code.
"""

from __future__ import annotations

import contextlib
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

# Who is impatient, or a tool that signals a process and its group, interrupts twice.
_SAME_SECONDS = 1.0
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


class Interrupts:
    """A context manager that takes SIGINT and SIGTERM for as long as it is open, in the main thread.

    A signal says "stopping…" and raises KeyboardInterrupt, unless it is held back: then it sets `requested`,
    and KeyboardInterrupt follows at the end of the held block. Another signal, a moment later, raises in any
    case. One that was not opened takes no signal.
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
        """Let the block end by itself, soon after the event that it is given is set."""
        self._shields += 1
        try:
            yield self.requested
        finally:
            self._shields -= 1
        if self.requested.is_set() and not self._shields:
            raise KeyboardInterrupt

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        now = self._clock.monotonic()
        if not self.requested.is_set():
            self.requested.set()
            self._first = now
            with contextlib.suppress(OSError):  # not by a stream: the signal may have come while one writes
                os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, "stopping…\n".encode())
            if self._shields:
                return
        elif now - self._first < _SAME_SECONDS:
            return
        raise KeyboardInterrupt


@contextlib.contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block where SIGINT or SIGTERM would end the process without a word.

    But not into the loading of a module, where it may be lost, or end as another error: the process ends.
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
    """Let the block, a moment's work, end before any handler of SIGINT or SIGTERM runs.

    For calls of C that check for signals and then take the handler's exception for an error of their own.
    Handlers run in the main thread only; in another the block is whole already.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in found.items() if callable(handler)}
    try:
        for number in before:
            signal.signal(number, lambda number, _frame: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for it in came:
            signal.raise_signal(it)
