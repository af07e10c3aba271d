"""Validation of the agent's settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from agent.settings import AgentSettings
from core.errors import InvalidInputError


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("flush_bytes", 0, "agent setting flush_bytes is 0"),
        ("cache_bytes", -1, "agent setting cache_bytes is -1"),
        ("flush_bytes", 2**28, r"flush_bytes \(268435456\) exceeds max_buffered_bytes"),
    ],
)
def test_an_invalid_setting_is_named_in_the_error(name: str, value: int, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        replace(AgentSettings(), **cast("Any", {name: value}))
