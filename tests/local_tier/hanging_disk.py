"""Faults of a disk that hangs: calls wait until the test lets them go on."""

from __future__ import annotations

import threading

from typing_extensions import override

from tests.local_tier.steps import NoFaults


class HangingDisk(NoFaults):
    """Lets every step that begins with `prefix` wait while the disk hangs."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix
        self._works = threading.Event()
        self._works.set()
        self.waiting = 0
        self._lock = threading.Lock()

    def hang(self) -> None:
        """Let all further steps wait."""
        self._works.clear()

    def work(self) -> None:
        """Let all steps go on."""
        self._works.set()

    @override
    def before(self, step: str) -> None:
        if step.startswith(self._prefix) and not self._works.is_set():
            with self._lock:
                self.waiting += 1
            self._works.wait()
            with self._lock:
                self.waiting -= 1

    @override
    def share(self, step: str, size: int) -> int:
        self.before(step)
        return size
