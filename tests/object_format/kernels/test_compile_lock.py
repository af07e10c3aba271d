"""Only one process at a time compiles a kernel."""

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
    """Return the module as in a process that has not called its kernels yet."""
    spec = importlib.util.spec_from_file_location("kernels_of_a_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_free(lock: Path) -> bool:
    """Return True if another process could take the lock now."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class LockListener(event.Listener):
    """Records at each compilation whether the kernel's lock is free."""

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
def listening() -> Iterator[LockListener]:
    watcher = LockListener()
    with event.install_listener("numba:compile", watcher):
        yield watcher


def test_the_lock_is_held_until_compiled_code_is_cached(tmp_path: Path) -> None:
    """This includes called kernels. Later processes load both from the cache."""
    path = tmp_path / "kernels_of_a_test.py"
    path.write_text(MODULE)
    first, second = load(path), load(path)

    with listening() as watcher:
        assert first.four_times(1) == 4

    assert watcher.seen == [
        ("four_times", False),
        ("_twice", False),
        ("_twice", False),
        ("four_times", False),
    ]
    with listening() as watcher:
        assert second.four_times(1) == 4
    assert watcher.seen == []
    assert all(is_free(lock) for kernel in (first.four_times, first._twice) if (lock := lock_path(kernel)))


def test_waiting_for_a_lock_times_out(tmp_path: Path) -> None:
    """The owner may have been stopped; the kernel is then compiled again."""
    path, clock = tmp_path / "a.lock", ManualClock()

    with compile_lock(path, clock) as first, compile_lock(path, clock) as second:
        assert (first, second) == (True, False)

    assert LOCK_TIMEOUT_SECONDS <= clock.monotonic() < LOCK_TIMEOUT_SECONDS + 1
    with compile_lock(path, clock) as third:
        assert third


def test_no_lock_is_taken_in_a_read_only_directory(tmp_path: Path) -> None:
    """Numba does not cache anything there, either."""
    (tmp_path / "a file").touch()

    with compile_lock(tmp_path / "a file" / "a.lock", ManualClock()) as is_locked:
        assert not is_locked
