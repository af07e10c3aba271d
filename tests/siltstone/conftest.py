"""What the tests of the command share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _logs_stay_with_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that run in this process leave its logging as it is."""
    monkeypatch.setattr("siltstone.cli.options.configure_logs", lambda _: None)
