"""Threads of a test or a driver whose exceptions are raised in the test."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_TIMEOUT_SECONDS = 240.0


class Work:
    """A running thread. Its exception is raised by `check` and `finish`, not only printed."""

    def __init__(self, work: Callable[[], None], name: str = "a thread") -> None:
        self._work = work
        self.name = name
        self._outcome: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as failure:  # noqa: BLE001  # raised by `check`
            self._outcome.set_exception(failure)
        else:
            self._outcome.set_result(None)

    @property
    def is_running(self) -> bool:
        """Return True if the thread has not ended."""
        return not self._outcome.done()

    def check(self) -> None:
        """Raise the thread's exception if it has failed."""
        if self._outcome.done():
            self._outcome.result()

    def finish(self) -> None:
        """Wait for the thread; raise its exception, or TimeoutError if it does not end in time."""
        if not wait([self._outcome], _TIMEOUT_SECONDS).done:
            message = f"{self.name} did not end in {_TIMEOUT_SECONDS:.0f} s"
            raise TimeoutError(message)
        self._outcome.result()
        self._thread.join()
