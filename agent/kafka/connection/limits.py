"""What one client may use: request sizes, requests in flight, and time without progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.runtime.byte_budget import ByteBudget

_CHECKS_WHILE_SCARCE = 4
"""Checks within the shorter time limit. More than one check must fail, so that a stalled event loop, which
delays all of them, does not disconnect a client that makes progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowClientPolicy:
    """How long a client may go without progress before the agent disconnects it.

    The connection checks for progress every `check_seconds`. A client is disconnected after `max_checks`
    checks without progress. If the client retains memory from a budget in `memory` and any of these budgets
    is more than half full, `max_checks_while_scarce` checks are enough.
    """

    check_seconds: float
    max_checks: int
    max_checks_while_scarce: int
    memory: Sequence[ByteBudget]

    @classmethod
    def of(cls, seconds: float, scarce_seconds: float, memory: Sequence[ByteBudget]) -> SlowClientPolicy:
        """Return the policy for two time limits: the usual one, and the one while memory is scarce."""
        scarce_seconds = min(seconds, scarce_seconds)
        check_seconds = scarce_seconds / _CHECKS_WHILE_SCARCE
        return cls(
            check_seconds=check_seconds,
            max_checks=round(seconds / check_seconds),
            max_checks_while_scarce=_CHECKS_WHILE_SCARCE,
            memory=memory,
        )

    @property
    def scarce_seconds(self) -> float:
        """The time limit while memory is scarce."""
        return self.check_seconds * self.max_checks_while_scarce

    def is_exceeded(self, checks: int, *, retains_memory: bool) -> bool:
        """Return True if a client is to be disconnected after so many checks without progress."""
        if checks >= self.max_checks:
            return True
        is_scarce = checks >= self.max_checks_while_scarce and retains_memory
        return is_scarce and any(budget.is_scarce for budget in self.memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Bounds of one connection; until its client has logged in, if it must, those of `LoginLimits` hold."""

    max_request_bytes: int
    max_pending_requests: int
    slow_clients: SlowClientPolicy
    login: LoginLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginLimits:
    """Bounds of a connection on which a login is under way: one request at a time, and a time limit."""

    max_request_bytes: int
    seconds: float
    max_pending_requests: int = 1
