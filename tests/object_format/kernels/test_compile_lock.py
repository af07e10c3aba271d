"""Processes take turns at compiling kernels."""

from __future__ import annotations

import fcntl
import importlib.util
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from numba.core import event
from typing_extensions import override

from core.clock import ManualClock
from object_format.kernels.runtime.compile_lock import LOCK_TIMEOUT_SECONDS, compile_lock, lock_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = """
from numba import njit

@njit(cache=True)
def _twice(number):
    return 2 * number

@njit(cache=True)
def four_times(number):
    return _twice(_twice(number))
"""


def load(path: Path) -> Any:  # noqa: ANN401  # numba has no types
    """The module as a process has it that has not called its kernels yet."""
    spec = importlib.util.spec_from_file_location("kernels_of_a_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_free(lock: Path) -> bool:
    """Whether another process could have it now."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class Watching(event.Listener):
    """Notes at each compilation whether the kernel's lock is free."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []

    @override
    def on_start(self, event: Any) -> None:
        self._note(event.data["dispatcher"])

    @override
    def on_end(self, event: Any) -> None:
        self._note(event.data["dispatcher"])

    def _note(self, kernel: Any) -> None:  # noqa: ANN401
        lock = lock_path(kernel)
        assert lock is not None
        self.seen.append((kernel.py_func.__name__, is_free(lock)))


@contextmanager
def watching() -> Iterator[Watching]:
    watcher = Watching()
    with event.install_listener("numba:compile", watcher):
        yield watcher


def test_who_compiles_a_kernel_keeps_others_from_it_until_it_is_kept(tmp_path: Path) -> None:
    """With what it calls; whoever comes later finds both."""
    path = tmp_path / "kernels_of_a_test.py"
    path.write_text(MODULE)
    first, second = load(path), load(path)

    with watching() as watcher:
        assert first.four_times(1) == 4

    assert watcher.seen == [
        ("four_times", False),
        ("_twice", False),
        ("_twice", False),
        ("four_times", False),
    ]
    with watching() as watcher:
        assert second.four_times(1) == 4
    assert watcher.seen == []
    assert all(is_free(lock) for kernel in (first.four_times, first._twice) if (lock := lock_path(kernel)))


def test_a_process_that_never_ends_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    """It may have been stopped; what it holds is compiled once more."""
    path, clock = tmp_path / "a.lock", ManualClock()

    with compile_lock(path, clock) as first, compile_lock(path, clock) as second:
        assert (first, second) == (True, False)

    assert LOCK_TIMEOUT_SECONDS <= clock.monotonic() < LOCK_TIMEOUT_SECONDS + 1
    with compile_lock(path, clock) as third:
        assert third


def test_a_directory_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    """Numba keeps nothing there either."""
    (tmp_path / "a file").touch()

    with compile_lock(tmp_path / "a file" / "a.lock", ManualClock()) as held:
        assert not held
