"""Fixtures of group tests."""

from __future__ import annotations

import pytest

from core.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """A clock that the test advances."""
    return ManualClock()
