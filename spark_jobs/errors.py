"""Errors between a compaction job and the cluster that runs it."""

from __future__ import annotations

from core.errors import InvalidInputError, RetryableError


class JavaNotFoundError(InvalidInputError):
    """No Java that Spark can use was found."""


class SparkUnavailableError(RetryableError):
    """Spark did not start, or its server does not respond."""


class IncompleteShuffleError(RetryableError):
    """A stage did not receive all rows of the stage before, so its result was discarded."""


class KernelMismatchError(RetryableError):
    """Processes with different kernels would work on one job; nothing was read or written."""


class JobCancelledError(RetryableError):
    """The caller stopped the work before its end; nothing was published."""
