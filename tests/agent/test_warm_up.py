"""The warm-up of an agent before clients connect."""

from __future__ import annotations

import subprocess
import sys


def test_the_event_loop_loads_no_kernel_after_the_warm_up() -> None:
    """Loading a kernel waits for any compilation in the process, and would block all clients."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.agent.loop_kernels"], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == []
