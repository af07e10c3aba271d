"""Threads whose failure is told."""

from __future__ import annotations

import threading

import pytest

from tests.agent.kafka.waiting import until
from tests.agent.kafka.work import Work


class _SaidNoError(Exception):
    pass


def test_what_a_thread_dies_of_is_raised_where_its_work_is_asked_for() -> None:
    """Each time, so that a test which waits for the work fails at once."""
    told = threading.Event()

    def work() -> None:
        told.wait()
        raise _SaidNoError

    def is_done() -> bool:
        begun.check()
        return False

    begun = Work(work)
    begun.check()
    told.set()
    with pytest.raises(_SaidNoError):
        until(is_done)
    for ask in (begun.check, begun.finish):
        with pytest.raises(_SaidNoError):
            ask()


def test_a_thread_that_comes_to_its_end_is_no_failure() -> None:
    begun = Work(lambda: None)
    begun.finish()
    begun.check()
