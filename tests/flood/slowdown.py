"""How much slower this machine is at the moment than an idle one, because other processes use it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tests.fixtures.fork_server import FORK_SERVER

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

_WORK_SECONDS: Final = 0.005
_PAUSE_SECONDS: Final = 0.1


class Slowdown:
    """A process that measures the time that a little work takes, again and again."""

    def __init__(self) -> None:
        self._worst: Synchronized[float] = FORK_SERVER.Value("d", 1.0)
        self._process = FORK_SERVER.Process(target=_measure, args=(self._worst,), daemon=True)
        self._process.start()

    def take(self) -> float:
        """Return the worst factor since the last call, at least 1."""
        with self._worst.get_lock():
            worst, self._worst.value = self._worst.value, 1.0
        return worst

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()


def _measure(worst: Synchronized[float]) -> None:
    while True:
        begun, work_begun = time.perf_counter(), time.process_time()
        while time.process_time() - work_begun < _WORK_SECONDS:
            pass
        taken = time.perf_counter() - begun
        with worst.get_lock():
            worst.value = max(worst.value, taken / _WORK_SECONDS)
        time.sleep(_PAUSE_SECONDS)
