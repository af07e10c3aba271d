"""Errors of the agent's bounded resources."""

from __future__ import annotations

from core.errors import RetryableError


class BusyError(RetryableError):
    """A bounded buffer, pool or memory budget of this agent is full."""


class StoppingError(RetryableError):
    """The agent is stopping and accepts no new work."""
