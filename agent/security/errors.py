"""Errors of authentication. Their messages are for clients, and contain no secrets and no names."""

from __future__ import annotations

from core.errors import InvalidInputError, RetryableError


class AuthenticationFailedError(InvalidInputError):
    """The client did not prove who it is; `reason` is a short name for the log."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class LoginUnavailableError(RetryableError):
    """The agent cannot tell whether the credentials are right: the client may try again."""
