"""How many files the process may have open.

A segment of a local log takes three descriptors (its file, and the memory of its two indexes), and two more
while it takes appends; the soft limit that a shell gives is often 1,024.
"""

from __future__ import annotations

import resource
from pathlib import Path

import structlog

_log = structlog.get_logger(__name__)
_DESCRIPTORS = (Path("/proc/self/fd"), Path("/dev/fd"))


def raise_limit() -> int:
    """Raise the soft limit to the hard one, as Java's virtual machine does; what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # some systems allow less than they say
            _log.warning("the limit on open files stays as it is", limit=soft, reason=str(error))
    return limit()


def limit() -> int:
    """How many files may be open at once."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def count() -> int:
    """How many are; 0 where the system does not tell."""
    for directory in _DESCRIPTORS:
        if directory.is_dir():
            return sum(1 for _ in directory.iterdir())
    return 0
