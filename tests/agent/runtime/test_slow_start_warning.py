"""The warning about a slow step of the start."""

from __future__ import annotations

import threading

import pytest
from structlog.testing import capture_logs

from agent.runtime import slow_start_warning as slow_start


def test_only_a_slow_step_of_the_start_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log names the slow step, even if the step then fails."""
    was_logged = threading.Event()
    log_warning = slow_start._log_warning

    def log_and_note(doing: str) -> None:
        log_warning(doing)
        was_logged.set()

    monkeypatch.setattr(slow_start, "_log_warning", log_and_note)

    def fail_slowly() -> None:
        with slow_start.warn_if_slow("a slow step", seconds=0):
            assert was_logged.wait(240)
            raise OSError("it failed")

    with capture_logs() as log:
        with slow_start.warn_if_slow("a quick step", seconds=3600):
            pass
        with pytest.raises(OSError, match="it failed"):
            fail_slowly()
    assert [line["event"] for line in log] == ["the agent is not ready yet: a slow step"]
