"""What an agent has done before anybody waits for it."""

from __future__ import annotations

import subprocess
import sys


def test_the_event_loop_loads_no_kernel_once_the_agent_is_warm() -> None:
    """Loading one waits for whoever compiles another in this process, and with it would all clients."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.agent.loop_kernels"], check=True, capture_output=True, text=True
    )
    assert told.stdout.split() == []
