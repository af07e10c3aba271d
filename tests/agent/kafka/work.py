"""Threads beside a test or a driver, whose failure is told to whoever asks for their work."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_SECONDS = 240.0


class Work:
    """A thread that has begun. What it dies of is raised where its work is asked for, not only printed."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._outcome: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as failure:  # noqa: BLE001  # told by `check`
            self._outcome.set_exception(failure)
        else:
            self._outcome.set_result(None)

    def check(self) -> None:
        """Raises what it died of, if it did."""
        if self._outcome.done():
            self._outcome.result()

    def finish(self) -> None:
        """Wait for its end; raises what it died of, and TimeoutError when it does not end."""
        self._outcome.result(_PATIENCE_SECONDS)
        self._thread.join()
