"""What becomes of memory that the process has freed."""

from __future__ import annotations

import ctypes
import os

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_FREE_BYTES = 64 * 1024 * 1024
_MAPPED_BYTES = 32 * 1024 * 1024  # the most that glibc comes to by itself


def keep_freed_memory() -> None:
    """Let what was freed wait for its next use in this process, 64 MiB of it at the end of each heap.

    Otherwise glibc gives it back once a few megabytes are free, and every page of the next buffer is a fault:
    a fifth of the processor's time where fetches are read from objects. Where malloc is another one, or is
    told by its environment what to do, nothing changes.
    """
    is_told = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not is_told:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _FREE_BYTES)
