"""Base classes of all errors, by what the caller must do.

::

    SiltstoneError
    ├── RetryableError      repeat the same call later: the other side is busy, slow or unreachable
    ├── StaleStateError     read the state again and decide again: it has changed meanwhile
    ├── InvalidInputError   change the request: it can never succeed
    │   ├── NotFoundError   it refers to something that does not exist
    │   └── OffsetOutOfRangeError  it reads outside the log
    └── FatalError          stop: continuing could damage data, or the error is a defect
        ├── BackgroundTaskError  a part of this process has ended, and it must be restarted
        └── CorruptDataError  bytes differ from what was written
            └── CorruptFileError  the bytes of one file, which is named: proof against this file

Packages derive their own errors from these where a caller must distinguish them. `message` names the object
that is wrong and its location; `remedy` says what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from uuid import UUID


class SiltstoneError(Exception):
    """Base class of every error that Siltstone raises deliberately."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    @override
    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class RetryableError(SiltstoneError):
    """The same call may succeed later; `retry_after_seconds` is a hint."""

    def __init__(
        self, message: str, *, remedy: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after_seconds = retry_after_seconds


class StaleStateError(SiltstoneError):
    """The call relies on state that has changed: read it again, then decide again."""


class InvalidInputError(SiltstoneError):
    """The request is invalid and cannot succeed unchanged."""


class NotFoundError(InvalidInputError):
    """The request refers to something that does not exist."""


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
    """Continuing would be unsafe."""


class BackgroundTaskError(FatalError):
    """A background task that this process cannot do without has ended: restart the process."""


class CorruptDataError(FatalError):
    """Bytes differ from what was written: truncated, flipped or forged."""


class CorruptFileError(CorruptDataError):
    """The bytes of one segment file differ from what was written.

    Only this error is proof against a file. Every other error of a compaction task may have its cause in the
    environment of the task: credentials, the store, the disk, memory or versions.
    """

    def __init__(self, message: str, *, file_id: UUID, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.file_id = file_id
