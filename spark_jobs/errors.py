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


class TaskFaultError(RetryableError):
    """A task failed, and no input file is proven to be the cause: Spark tries another executor.

    The message is one line, `class: message`, because the driver receives it inside Spark's text.
    """


class QueryFailedError(RetryableError):
    """Spark failed a query, and not because of the job; the session works."""


class NoExecutorError(RetryableError):
    """The cluster ran no task of this session for a configured time."""


class SparkVersionError(InvalidInputError):
    """The Spark server lacks a function that compaction needs."""


class PreflightError(RetryableError):
    """A worker cannot run jobs as this driver expects: versions, credentials, permissions or directories."""


class WorkerDiedError(RetryableError):
    """The process that ran a task died in each of Spark's attempts."""


class JobCancelledError(RetryableError):
    """The caller stopped the work before its end; nothing was published."""
