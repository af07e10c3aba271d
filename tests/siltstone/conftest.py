"""Fixtures of the tests of `siltstone`."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _keep_pytest_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep commands that run in this process from configuring logging."""
    monkeypatch.setattr("siltstone.cli.options.configure_logs", lambda _: None)
