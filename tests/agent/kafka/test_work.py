"""Threads whose exceptions are raised in the test."""

from __future__ import annotations

import threading

import pytest

from tests.agent.kafka.waiting import until
from tests.agent.kafka.work import Work


class _ThreadError(Exception):
    pass


def test_an_exception_of_a_thread_is_raised_by_check_and_finish() -> None:
    """Each time, so that a test that waits for the thread fails at once."""
    may_fail = threading.Event()

    def work() -> None:
        may_fail.wait()
        raise _ThreadError

    def is_done() -> bool:
        thread.check()
        return False

    thread = Work(work)
    thread.check()
    may_fail.set()
    with pytest.raises(_ThreadError):
        until(is_done)
    for call in (thread.check, thread.finish):
        with pytest.raises(_ThreadError):
            call()


def test_a_thread_that_ends_normally_raises_nothing() -> None:
    thread = Work(lambda: None)
    thread.finish()
    thread.check()
