from __future__ import annotations

import threading

from core.clock import SystemClock
from local_tier.scheduler import BackgroundScheduler


def test_tasks_run_in_the_order_of_their_due_times() -> None:
    scheduler, seen, done = BackgroundScheduler(SystemClock(), threads=1), [], threading.Event()
    scheduler.schedule_once("last", done.set, 60)
    scheduler.schedule_once("second", lambda: seen.append(2), 30)
    scheduler.schedule_once("first", lambda: seen.append(1))
    scheduler.start()
    assert done.wait(240)
    scheduler.stop()

    assert seen == [1, 2]


def test_a_periodic_task_is_repeated_after_an_error() -> None:
    scheduler, seen, done = BackgroundScheduler(SystemClock(), threads=2), [], threading.Event()

    def work() -> None:
        seen.append(threading.current_thread().name)
        if len(seen) == 3:
            done.set()
        raise ValueError("this time, too")

    scheduler.schedule_every("again", work, first_delay_ms=1, period_ms=1)
    scheduler.start()
    assert done.wait(240)
    scheduler.stop()
    count = len(seen)
    scheduler.schedule_once("late", lambda: seen.append("late"))

    assert count >= 3
    assert len(seen) == count


def test_tasks_that_are_not_due_are_dropped_at_the_stop() -> None:
    scheduler, seen = BackgroundScheduler(SystemClock()), []
    scheduler.schedule_once("never", lambda: seen.append(1), 3_600_000)
    scheduler.start()
    scheduler.stop()

    assert seen == []


def test_a_scheduler_that_was_not_started_can_be_stopped() -> None:
    BackgroundScheduler(SystemClock()).stop()
