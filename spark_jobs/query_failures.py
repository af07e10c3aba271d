"""Reasons of failed queries, from the text in which Spark wraps them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j carries no types

from spark_jobs.errors import QueryFailedError, SparkUnavailableError, TaskFaultError, WorkerDiedError
from spark_jobs.report import JobFailure

if TYPE_CHECKING:
    from uuid import UUID

_TRACEBACK: Final = "Traceback (most recent call last):"
# If Spark has excluded all executors, it names the failure in the fifth line.
_AFTER_EXCLUSION: Final = "excludeOnFailure.\nMost recent failure:\n"
_EXCEPTION_LINE: Final = re.compile(r"(?:\w+\.)*(?P<class>\w+)(?:: (?P<message>.*))?")
_DEATHS: Final = ("Python worker exited unexpectedly", "ExecutorLostFailure")
_SESSION_IS_GONE: Final = re.compile(
    r"SparkContext was shut down|stopped SparkContext|StatusCode\.UNAVAILABLE"
    r"|SESSION_(?:CHANGED|CLOSED|NOT_FOUND)|NO_ACTIVE_SESSION"
)
_TASK_FAILED: Final = re.compile(r"SparkException|Job aborted|\[[A-Z_.]+\]")


def failure_of(job_id: UUID, error: Exception) -> JobFailure:
    """Return the failure of a job whose query failed.

    Its class is that of the error in the Python worker, if there was one. Otherwise it is WorkerDiedError,
    QueryFailedError, or SparkUnavailableError if the session is gone.
    """
    line = last_line_of_traceback(str(error))
    if line is None:
        return JobFailure.of(job_id, _error_without_traceback(error))
    found = _EXCEPTION_LINE.fullmatch(line)
    name, message = (found["class"], found["message"] or "") if found else ("Exception", line)
    if name == TaskFaultError.__name__:
        name, _, message = message.partition(": ")
    else:
        message = line
    return JobFailure(job_id=str(job_id), kind="retryable", error=name, message=message)


def last_line_of_traceback(text: str) -> str | None:
    """Return the line with class and message of the Python exception in Spark's text, if there is one."""
    before, found, after = text.rpartition(_TRACEBACK)
    if not found:
        return None
    start = before.rpartition("\n")[2]
    indent = start if start.isspace() else ""  # Spark indents what a worker printed that did not start
    lines = (line.rstrip().removeprefix(indent) for line in after.splitlines()[1:])
    return next((line for line in lines if line and not line[0].isspace()), None)


def reason_of(error: Exception) -> str:
    """Return an exception's message in one line: of a Python worker, or of Java."""
    text = str(error)
    _, _, after = text.partition(_AFTER_EXCLUSION)
    lines = (after or text).strip().splitlines() or [type(error).__name__]
    is_java = isinstance(error, Py4JJavaError) and not after
    first = lines[1].removeprefix(": ") if is_java and lines[1:] else lines[0]
    return last_line_of_traceback(text) or first


def _error_without_traceback(error: Exception) -> Exception:
    text, reason = str(error), f"Spark could not finish the job: {reason_of(error)}"
    if any(death in text for death in _DEATHS):
        return WorkerDiedError(reason)
    if _TASK_FAILED.search(text) and not _SESSION_IS_GONE.search(text):
        return QueryFailedError(reason, remedy="see the log of Spark")
    return SparkUnavailableError(reason)
