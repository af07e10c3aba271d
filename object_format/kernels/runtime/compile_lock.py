"""Kernels are compiled by one process at a time: others that need the same one wait, and load it.

Agents, Spark's workers and tests begin together where nothing is cached yet, and each would compile it all.
And numba's cache (`numba.core.caching.IndexDataCacheFile.save`) is not made for that: of two processes that
save a kernel for other types each, both may choose the same file, and one then finds the other's code in it.
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
"""For how long a process waits for another at one kernel, before it compiles for itself: the other may have
been stopped. The longest takes seconds on an idle machine."""
_PAUSE_SECONDS: Final = 0.01

_locked_paths: Final[set[Path]] = set()


def install_compile_lock() -> None:
    """From now on, in this process; whoever does not is not waited for."""
    if not hasattr(Dispatcher.compile, "__wrapped__"):
        setattr(Dispatcher, "compile", _with_compile_lock(Dispatcher.compile))  # noqa: B010  # mypy wants no other way


def lock_path(kernel: Any) -> Path | None:  # noqa: ANN401  # numba has no types
    """The file by which processes take turns at a kernel; None when what is compiled is not kept."""
    code = kernel.py_func.__code__
    name = f"{Path(code.co_filename).stem}.{code.co_name}-{code.co_firstlineno}.lock"
    directory = kernel.stats.cache_path
    return directory and Path(directory, name)


@contextmanager
def compile_lock(path: Path, clock: Clock) -> Iterator[bool]:
    """Holds a kernel's lock in the block; yields False when it cannot be had, or not in time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError:  # neither can the cache be written there
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
    """What is numba's own way to a kernel, in compile_lock with other processes.

    A process that waits for a kernel's lock holds those of kernels that call it, never the other way round.
    Threads of one process have taken turns before, by the compiler's own lock.
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
