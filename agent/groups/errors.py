"""Errors of group requests."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from core.errors import SiltstoneError

__all__ = ["ErrorCode", "GroupError"]


class GroupError(SiltstoneError):
    """Refusal of a group request; `code` is the error code that Kafka's coordinator returns for it."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code
