"""The reason of a failed query is the failure of its task, in one line."""

from __future__ import annotations

from uuid import UUID

import pytest

from spark_jobs.errors import SparkUnavailableError
from spark_jobs.query_failures import failure_of, reason_of

_EXCLUDED = """An error occurred while calling o180.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: 
Aborting TaskSet 0.0 because task 1 (partition 1)
cannot run anywhere due to node and executor excludeOnFailure.
Most recent failure:
Lost task 0.1 in stage 0.0 (TID 3) (127.0.0.1 executor 1): java.io.IOException: Cannot run program "py"
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)

ExcludeOnFailure behavior can be configured via spark.excludeOnFailure.*.
"""  # noqa: W291  # as Spark writes it
_WORKER_DID_NOT_START = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 3 times: 
Error from python worker:
  Traceback (most recent call last):
    File "<frozen runpy>", line 198, in _run_module_as_main
    File "pyspark.zip/pyspark/daemon.py", line 129, in manager
  OSError: AF_UNIX path too long
PYTHONPATH was:
  /srv/spark/pyspark.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number
"""  # noqa: W291  # as Spark writes it


def test_the_last_failure_before_all_executors_were_excluded_is_named() -> None:
    assert reason_of(Exception(_EXCLUDED)) == (
        "Lost task 0.1 in stage 0.0 (TID 3) (127.0.0.1 executor 1): "
        'java.io.IOException: Cannot run program "py"'
    )


def test_an_exception_of_a_python_worker_is_named_by_the_last_line_of_its_traceback() -> None:
    text = "Job aborted\nTraceback (most recent call last):\n  File\nValueError: bad\n\tat java"
    assert reason_of(Exception(text)) == "ValueError: bad"


@pytest.mark.parametrize(
    "text",
    [
        "[INVALID_HANDLE.SESSION_CHANGED] The existing Spark server driver instance has restarted.",
        "[RESPONSE_ALREADY_RECEIVED] INVALID_HANDLE.SESSION_NOT_FOUND on the server",
        "[NO_ACTIVE_SESSION] No active Spark session found.",
    ],
)
def test_a_session_is_gone_if_its_connect_server_has_restarted(text: str) -> None:
    """It is no failure of the job, which runs again in another session."""
    assert failure_of(UUID(int=1), Exception(text)).error == SparkUnavailableError.__name__


def test_an_indented_traceback_ends_before_the_text_behind_it() -> None:
    assert reason_of(Exception(_WORKER_DID_NOT_START)) == "OSError: AF_UNIX path too long"


def test_an_exception_without_a_message_is_named_by_its_class() -> None:
    assert reason_of(KeyError()) == "KeyError"
