"""What an agent that starts says of a step that takes long."""

from __future__ import annotations

import threading

import pytest
from structlog.testing import capture_logs

from agent.runtime import slow_start_warning as slow_start


def test_a_slow_step_is_told_once_and_a_quick_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for an agent learns what it is busy with, also when the step then fails."""
    told = threading.Event()
    tell = slow_start._log_warning

    def tell_and_note(doing: str) -> None:
        tell(doing)
        told.set()

    monkeypatch.setattr(slow_start, "_log_warning", tell_and_note)

    def fail_slowly() -> None:
        with slow_start.warn_if_slow("a slow step", seconds=0):
            assert told.wait(240)
            raise OSError("it failed")

    with capture_logs() as log:
        with slow_start.warn_if_slow("a quick step", seconds=3600):
            pass
        with pytest.raises(OSError, match="it failed"):
            fail_slowly()
    assert [(line["event"], line["doing"]) for line in log] == [("the agent is not ready yet", "a slow step")]
