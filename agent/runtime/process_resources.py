"""Resources of the process: files, memory that malloc keeps, and garbage collection at the start."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = structlog.get_logger(__name__)
_PROC_DESCRIPTORS = Path("/proc/self/fd")
_DESCRIPTORS = Path("/dev/fd")
_MAX_MAPS = Path("/proc/sys/vm/max_map_count")
_USABLE = 0.75
# Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_FREE_BYTES = 64 * 1024 * 1024
_MAPPED_BYTES = 32 * 1024 * 1024  # the largest value that glibc chooses by itself


def raise_open_file_limit() -> int:
    """Raise the soft limit of open files to the hard limit, as the JVM does, and return it.

    A segment of a local log takes three descriptors (its file and two memory-mapped indexes), and two more
    while it is written. The soft limit of a shell is often only 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # some systems allow less than the hard limit
            _log.warning("the limit of open files could not be raised", limit=soft, reason=str(error))
    return open_file_limit()


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect no garbage while code is loaded, and leave out its objects afterwards.

    Loading makes hundreds of thousands of objects that stay, and next to no garbage. Collections during it
    take an eighth of its time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def open_file_limit() -> int:
    """Return the soft limit of open files."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_file_count() -> int:
    """Return the number of open files, or 0 if the system does not report it."""
    if _PROC_DESCRIPTORS.is_dir():  # from Linux 6.2 on, its size is the number
        return _PROC_DESCRIPTORS.stat().st_size or _entries(_PROC_DESCRIPTORS)
    return _entries(_DESCRIPTORS) if _DESCRIPTORS.is_dir() else 0


def _entries(directory: Path) -> int:
    return sum(1 for _ in directory.iterdir())


def may_open_more_files() -> bool:
    """Return True while the process has less than three quarters of the files open that it may.

    A cache leaves the rest to connections and local topics.
    """
    return open_file_count() < open_file_limit() * _USABLE


def may_map_more_files(mapped: int) -> bool:
    """Return True while the process has mapped less than three quarters of the files that it may.

    Linux limits the memory maps of a process (65,530 by default). Other systems do not.
    """
    return not _MAX_MAPS.is_file() or mapped < int(_MAX_MAPS.read_text()) * _USABLE


def keep_freed_memory() -> None:
    """Let malloc keep up to 64 MiB of freed memory at the end of each heap for later allocations.

    By default glibc returns memory to the system once a few megabytes are free. Every page of the next buffer
    then causes a page fault, which costs a fifth of the CPU time of fetches from the object store. Does
    nothing if malloc is not glibc's, or if environment variables configure it.
    """
    is_configured = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not is_configured:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _FREE_BYTES)
