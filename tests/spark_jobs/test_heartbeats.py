"""Heartbeats keep running jobs from expiring."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from core.errors import StaleStateError
from spark_jobs.heartbeats import Heartbeats, attempt_of
from tests.spark_jobs.test_compact import job

if TYPE_CHECKING:
    from uuid import UUID


class CatalogStub:
    """Records heartbeats, rejects those of job 1, and can wait for a number of them."""

    def __init__(self) -> None:
        self.heartbeats: list[int] = []
        self._received = threading.Condition()

    def heartbeat(self, job_id: UUID, attempt_id: UUID) -> None:
        assert attempt_id.int == 100 + job_id.int
        with self._received:
            self.heartbeats.append(job_id.int)
            self._received.notify_all()
        if job_id.int == 1:
            raise StaleStateError("lost")

    def wait_for(self, number: int, heartbeats: int) -> None:
        with self._received:
            assert self._received.wait_for(lambda: self.heartbeats.count(number) >= heartbeats, timeout=240)


def test_heartbeats_of_each_job_continue_until_it_is_dropped() -> None:
    """A failed heartbeat does not end the heartbeats of its job or of other jobs."""
    catalog = CatalogStub()

    with Heartbeats(catalog, seconds=0.001) as heartbeats:
        heartbeats.add([job(1), job(2)])
        catalog.wait_for(2, 1)
        heartbeats.add([job(3)])
        for number in (1, 2, 3):
            catalog.wait_for(number, 3)
        heartbeats.drop(attempt_of(job(3)))
        catalog.wait_for(2, catalog.heartbeats.count(2) + 2)
        dropped = catalog.heartbeats.count(3)
        catalog.wait_for(2, catalog.heartbeats.count(2) + 3)
        assert catalog.heartbeats.count(3) == dropped

    ended = len(catalog.heartbeats)
    assert not [thread for thread in threading.enumerate() if thread.name == "job-heartbeats"]
    assert len(catalog.heartbeats) == ended
