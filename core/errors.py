"""What can go wrong, sorted by what the caller must do about it.

::

    SiltstoneError
    ├── RetryableError      wait, then make the same call again: the other side is busy, slow or away
    ├── StaleStateError     the world moved on: read it again, then decide anew
    ├── InvalidInputError   the request can never work as it stands: change it
    │   ├── NotFoundError   it names something that does not exist
    │   └── OffsetOutOfRangeError  it reads outside the log
    └── FatalError          stop: going on could harm data, or a bug has shown itself
        └── CorruptDataError  bytes are not what was written

A room of the house derives its own errors from these where a caller needs to tell them apart. A message
names the thing that is wrong and where it is; `remedy` says what to do about it.
"""

from __future__ import annotations

from typing_extensions import override


class SiltstoneError(Exception):
    """The root of every error that Siltstone raises on purpose."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    @override
    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class RetryableError(SiltstoneError):
    """The same call may succeed later; `retry_after_seconds` is a hint, not a promise."""

    def __init__(
        self, message: str, *, remedy: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after_seconds = retry_after_seconds


class StaleStateError(SiltstoneError):
    """The call rests on state that has changed since; read it again and decide anew."""


class InvalidInputError(SiltstoneError):
    """The request is wrong and will stay wrong until its sender changes it."""


class NotFoundError(InvalidInputError):
    """The request names something that does not exist."""


class OffsetOutOfRangeError(InvalidInputError):
    """A fetch offset is below the log start offset or above the high watermark."""

    def __init__(self, where: str, offset: int, *, log_start_offset: int, high_watermark: int) -> None:
        super().__init__(
            f"offset {offset} of {where} is out of range {log_start_offset} to {high_watermark}",
            remedy=f"read from an offset of at least {log_start_offset} and at most {high_watermark}",
        )
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark


class FatalError(SiltstoneError):
    """Going on would be unsafe."""


class CorruptDataError(FatalError):
    """Bytes are not what was written: truncated, flipped or forged."""
