"""Crashes of watchers, of Spark's driver and of its Python workers while records are written."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from catalog.model import JobState
from core.clock import SystemClock
from object_store.open import open_store
from tests.crash.child_processes import ChildConfig
from tests.crash.fail_points import Crash
from tests.crash.spark_campaign import SparkCampaign
from tests.end_to_end.processes import leftovers

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from object_store.open import StoreConfig

pytestmark = [pytest.mark.integration, pytest.mark.spark]

#: A long run, for more kills after the two that are always there: CRASH_SPARK_ROUNDS=100 CRASH_SEED=7
ROUNDS = int(os.environ.get("CRASH_SPARK_ROUNDS", "0"))
SEED = int(os.environ.get("CRASH_SEED", "1"))
CHECK_EVERY = 6


@pytest.fixture
def clock() -> Clock:
    """Processes share nothing but real time."""
    return SystemClock()


@pytest.mark.timeout(3600 + 120 * ROUNDS)
def test_jobs_of_a_crashed_watcher_are_taken_over_and_published_once(
    catalog: Catalog, catalog_url: str, s3_config: StoreConfig, clock: Clock, ids: Ids, tmp_path: Path
) -> None:
    """Two `siltstone compact --watch` processes share the jobs of a log that is written and read.

    First a Python worker of Spark crashes, and Spark retries its task. Then a watcher crashes between the
    end and the publication of its job. Further crashes depend on the seed.
    """
    with contextlib.closing(open_store(s3_config, clock, ids)) as store:
        config = ChildConfig(catalog_url=catalog_url, store=s3_config)
        campaign = SparkCampaign(config, catalog, store, clock, SEED, tmp_path)
        with campaign.running():
            assert campaign.crash_worker(Crash("after upload.complete"))
            (crashed,) = campaign.crash_watcher(Crash("before jobs.complete"))
            taken_over = campaign.await_takeover()
            assert JobState.COMPLETED in {job.state for job in taken_over}
            assert min(job.attempts for job in taken_over) > 1
            if ROUNDS:
                crashed.start()
            for number in range(1, ROUNDS + 1):
                campaign.round()
                if number % CHECK_EVERY == 0:
                    campaign.check()
            campaign.check(restart=False)
        assert sum(campaign.kills.values()) == ROUNDS + 2
        assert campaign.leaks() == []
    assert leftovers(tmp_path) == []
