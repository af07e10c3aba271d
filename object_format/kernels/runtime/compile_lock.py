"""Ensures that only one process at a time compiles a kernel; the others wait and load the result.

Agents, Spark workers and tests often start at the same time with an empty cache, and would all compile
everything. In addition, numba's cache (`numba.core.caching.IndexDataCacheFile.save`) has a race: two
processes that save the same kernel for different types may choose the same file, and one of them then loads
the other's code.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

from core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.clock import Clock

LOCK_TIMEOUT_SECONDS: Final = 120.0
"""Time after which a process compiles a kernel itself, because the lock's owner may have been stopped.

The slowest kernel compiles in seconds on an idle machine.
"""
_PAUSE_SECONDS: Final = 0.01

_locked_paths: Final[set[Path]] = set()


def install_compile_lock() -> None:
    """Make numba use the lock in this process. Processes without it do not wait, and are not waited for."""
    if not hasattr(Dispatcher.compile, "__wrapped__"):
        setattr(Dispatcher, "compile", _with_compile_lock(Dispatcher.compile))  # noqa: B010  # mypy wants no other way


def lock_path(kernel: Any) -> Path | None:  # noqa: ANN401  # numba has no types
    """Return the lock file of a kernel; None if its compiled code is not cached."""
    code = kernel.py_func.__code__
    name = f"{Path(code.co_filename).stem}.{code.co_name}-{code.co_firstlineno}.lock"
    directory = kernel.stats.cache_path
    return directory and Path(directory, name)


@contextmanager
def compile_lock(path: Path, clock: Clock) -> Iterator[bool]:
    """Hold a kernel's lock; yield False if it is not available in time or cannot be created."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError:  # then numba cannot write its cache there, either
        yield False
        return
    try:
        yield _locked(lock, clock)
    finally:
        os.close(lock)


def _locked(lock: int, clock: Clock) -> bool:
    end = clock.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK or clock.monotonic() > end:
                return False
            clock.sleep(_PAUSE_SECONDS)
        else:
            return True


def _with_compile_lock(compile_or_load: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap numba's function that compiles or loads a kernel.

    A process that waits for the lock of a kernel holds the locks of its callers, but never those of its
    callees, so there is no deadlock. Threads of one process are serialized by numba's compiler lock.
    """
    clock = SystemClock()

    @functools.wraps(compile_or_load)
    def compile_under_lock(kernel: Any, signature: Any) -> Any:  # noqa: ANN401
        path = lock_path(kernel)
        with global_compiler_lock:
            if path is None or path in _locked_paths:
                return compile_or_load(kernel, signature)
            with compile_lock(path, clock):
                _locked_paths.add(path)
                try:
                    return compile_or_load(kernel, signature)
                finally:
                    _locked_paths.remove(path)

    return compile_under_lock
