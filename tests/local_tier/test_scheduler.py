from __future__ import annotations

import threading

from core.clock import SystemClock
from local_tier.scheduler import BackgroundScheduler


def test_tasks_run_in_the_order_they_come_due() -> None:
    scheduler, seen, done = BackgroundScheduler(SystemClock(), threads=1), [], threading.Event()
    scheduler.schedule_once("last", done.set, 60)
    scheduler.schedule_once("second", lambda: seen.append(2), 30)
    scheduler.schedule_once("first", lambda: seen.append(1))
    scheduler.start()
    assert done.wait(240)
    scheduler.stop()

    assert seen == [1, 2]


def test_a_task_comes_again_until_the_end_even_when_it_fails() -> None:
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


def test_what_is_not_due_is_dropped_at_the_end() -> None:
    scheduler, seen = BackgroundScheduler(SystemClock()), []
    scheduler.schedule_once("never", lambda: seen.append(1), 3_600_000)
    scheduler.start()
    scheduler.stop()

    assert seen == []


def test_a_scheduler_that_never_began_stops() -> None:
    BackgroundScheduler(SystemClock()).stop()
