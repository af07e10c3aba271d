"""What an agent has freed is there for it again, without asking the kernel for every page."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_ROUNDS, _BUFFERS, _BYTES = 4, 8, 4 * 1024 * 1024
_PROGRAM = f"""
import resource, sys
from agent.freed_memory import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
for number in range({_ROUNDS} + 1):
    if number == 1:  # memory comes at the first touch
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffers = [bytearray({_BYTES}) for _ in range({_BUFFERS})]
    del buffers
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(*, keep: bool, **environment: str) -> int:
    """Pages that had to be asked for again."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    argument = "keep" if keep else "leave"
    told = subprocess.run(
        [sys.executable, "-c", _PROGRAM, argument], capture_output=True, check=True, env=own | environment
    )
    return int(told.stdout)


@pytest.mark.parametrize("told", [{}, {"MALLOC_TRIM_THRESHOLD_": "8388608"}], ids=["its own", "told"])
def test_pages_of_freed_buffers_are_used_again(told: dict[str, str]) -> None:
    """Buffers that come and go cost pages once, unless the environment says how memory is to be freed."""
    kept, given_back = _faults(keep=True, **told), _faults(keep=False, **told)
    if told:
        assert kept > given_back / 2
    else:
        assert kept < given_back / 4
