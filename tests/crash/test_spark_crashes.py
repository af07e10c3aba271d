"""Watchers, Spark's driver and its Python workers die while records are written, and others go on."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from catalog.model import JobState
from core.clock import SystemClock
from object_store.open import open_store
from tests.crash.children import Place
from tests.crash.fail_points import Strike
from tests.crash.spark_campaign import SparkCampaign
from tests.end_to_end.processes import leftovers

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from object_store.open import StoreConfig

pytestmark = [pytest.mark.integration, pytest.mark.spark]

#: A long run, for more deaths after the two that are always there: CRASH_SPARK_ROUNDS=100 CRASH_SEED=7
ROUNDS = int(os.environ.get("CRASH_SPARK_ROUNDS", "0"))
SEED = int(os.environ.get("CRASH_SEED", "1"))
CHECK_EVERY = 6


@pytest.fixture
def clock() -> Clock:
    """Processes share real time alone."""
    return SystemClock()


@pytest.mark.timeout(3600 + 120 * ROUNDS)
def test_what_a_dead_watcher_has_begun_another_does_and_publishes_once(
    catalog: Catalog, catalog_url: str, s3_config: StoreConfig, clock: Clock, ids: Ids, tmp_path: Path
) -> None:
    """Two `siltstone compact --watch` share the jobs of a log that is written and read.

    A Python worker of Spark's dies, whose task Spark tries again; then a watcher, between its job's end and
    its publication; and then whoever the seed says.
    """
    with contextlib.closing(open_store(s3_config, clock, ids)) as store:
        place = Place(catalog_url=catalog_url, store=s3_config)
        campaign = SparkCampaign(place, catalog, store, clock, SEED, tmp_path)
        with campaign.running():
            assert campaign.strike_worker(Strike("after upload.complete"))
            (dead,) = campaign.strike_watcher(Strike("before jobs.complete"))
            taken_over = campaign.await_takeover()
            assert JobState.COMPLETED in {job.state for job in taken_over}
            assert min(job.attempts for job in taken_over) > 1
            if ROUNDS:
                dead.start()
            for number in range(1, ROUNDS + 1):
                campaign.round()
                if number % CHECK_EVERY == 0:
                    campaign.check()
            campaign.check(go_on=False)
        assert sum(campaign.deaths.values()) == ROUNDS + 2
        assert campaign.leaks() == []
    assert leftovers(tmp_path) == []
