"""Jobs that somebody works on are not taken for dead."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from core.errors import StaleStateError
from spark_jobs.heartbeats import Heartbeats
from tests.spark_jobs.test_compact import job

if TYPE_CHECKING:
    from uuid import UUID


class Catalog:
    """Takes heartbeats, refuses those of job 1, and lets others wait until a number has come."""

    def __init__(self) -> None:
        self.beats: list[int] = []
        self._come = threading.Condition()

    def heartbeat(self, job_id: UUID, attempt_id: UUID) -> None:
        assert attempt_id.int == 100 + job_id.int
        with self._come:
            self.beats.append(job_id.int)
            self._come.notify_all()
        if job_id.int == 1:
            raise StaleStateError("lost")

    def wait_for(self, number: int, beats: int) -> None:
        with self._come:
            assert self._come.wait_for(lambda: self.beats.count(number) >= beats, timeout=240)


def test_jobs_are_kept_alive_while_their_run_is_busy_elsewhere() -> None:
    """Again and again, also when the heartbeat of one fails, until each is over."""
    catalog = Catalog()

    with Heartbeats(catalog, [job(1), job(2), job(3)], seconds=0.001) as heartbeats:
        for number in (1, 2, 3):
            catalog.wait_for(number, 3)
        heartbeats.drop(job(3).spec.job_id)
        catalog.wait_for(2, catalog.beats.count(2) + 2)
        dropped = catalog.beats.count(3)
        catalog.wait_for(2, catalog.beats.count(2) + 3)
        assert catalog.beats.count(3) == dropped

    ended = len(catalog.beats)
    assert not [thread for thread in threading.enumerate() if thread.name == "job-heartbeats"]
    assert len(catalog.beats) == ended
