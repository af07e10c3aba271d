"""Errors of the agent that do not depend on a protocol. Each protocol maps them to its own codes."""

from __future__ import annotations

from core.errors import NotFoundError, RetryableError


class AppendFailedError(RetryableError):
    """Records that the agent accepted could not be stored or committed.

    If only the response of the commit was lost, the records may be in the log nevertheless, as after a
    request timeout in Kafka. Only an idempotent producer can send them again without the risk of duplicates.
    """


class NotLeaderError(RetryableError):
    """The partition is stored on the disk of another agent, which may be dead."""


class UnknownPartitionError(NotFoundError):
    """The topic exists and has no such partition."""


class ReadFailedError(RetryableError):
    """Objects cannot be read at the moment."""


class DiskLateError(ReadFailedError):
    """A log directory of this agent does not respond in time."""
