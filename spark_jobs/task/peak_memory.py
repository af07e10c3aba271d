"""What a process took at most, from some moment on."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_HIGH_WATER = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def reset_peak() -> None:
    """Begin to measure anew, where the system can: a Spark worker process runs one task after another."""
    try:
        _CLEAR_REFS.write_text("5")  # proc(5): resets the peak resident set size
    except OSError:
        return


def peak_rss_bytes() -> int:
    """The largest resident set since `reset_peak`; since the process began, where that cannot be told."""
    try:
        found = _HIGH_WATER.search(_STATUS.read_text())
    except OSError:
        found = None
    if found:
        return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
