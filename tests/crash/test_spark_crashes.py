"""Crashes of watchers and of Spark's Python workers: another attempt takes over, and is published once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from catalog.model import JobState
from tests.crash.campaign import CampaignSettings
from tests.crash.fail_points import Crash
from tests.crash.faults import SparkFaults
from tests.crash.processes import TIMEOUT_SECONDS
from tests.crash.spark_watcher import WATCHER_CRASH, WORKER_CRASH
from tests.crash.test_campaign import campaign_of

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.model import Job
    from catalog.open import Catalog
    from object_store.open import StoreConfig
    from tests.fixtures.postgres_pair import PostgresPair

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def await_takeover(catalog: Catalog) -> list[Job]:
    """Wait until all present attempts have ended; return the jobs that another attempt has completed."""
    before = {job.spec.job_id: job.attempt_id for job in catalog.jobs.list({JobState.RUNNING})}
    end = time.monotonic() + TIMEOUT_SECONDS
    while True:
        jobs = [catalog.jobs.get(job_id) for job_id in before]
        if all(job.state in (JobState.COMPLETED, JobState.FAILED) for job in jobs):
            return [job for job in jobs if job.attempt_id != before[job.spec.job_id]]
        assert time.monotonic() < end, "the jobs of the crashed watcher were not taken over"
        time.sleep(0.05)


@pytest.mark.timeout(3600)
def test_jobs_of_a_crashed_watcher_are_taken_over_and_published_once(
    postgres_pair: PostgresPair, s3_config: StoreConfig, tmp_path: Path
) -> None:
    """Two `siltstone compact --watch` processes share the jobs of a log that is written and read.

    First a Python worker of Spark crashes, and Spark retries its task. Then a watcher crashes between the
    end and the publication of its job.
    """
    settings = CampaignSettings(seed=1, directory=tmp_path, agents=1, rate=2)
    with campaign_of(settings, postgres_pair, s3_config) as campaign:
        faults = SparkFaults(campaign.watchers, tmp_path / "crashes", max_freeze_seconds=0)
        assert faults.crash(WORKER_CRASH, Crash("after upload.complete"), TIMEOUT_SECONDS)
        assert faults.crash(WATCHER_CRASH, Crash("before jobs.complete"), TIMEOUT_SECONDS)
        taken_over = await_takeover(campaign.catalog)
        assert JobState.COMPLETED in {job.state for job in taken_over}
        assert min(job.attempts for job in taken_over) > 1
        campaign.check()  # the other watcher has done the rest
