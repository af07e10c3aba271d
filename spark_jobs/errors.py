"""What can go wrong between a compaction job and the cluster that runs it."""

from __future__ import annotations

from core.errors import InvalidInputError, RetryableError


class JavaNotFoundError(InvalidInputError):
    """No Java that Spark can run on."""


class SparkUnavailableError(RetryableError):
    """Spark did not start, or its server does not answer."""


class IncompleteShuffleError(RetryableError):
    """Rows of a stage did not all reach the next: an answer might lose records, and was not given."""


class JobCancelledError(RetryableError):
    """The work was stopped before its end, at the wish of whoever started it; nothing was published."""
