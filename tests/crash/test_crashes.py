"""Agents and workers die at any point while records are written; nothing is lost, doubled or left behind."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core.clock import SystemClock
from object_store.open import open_store
from tests.crash.campaign import Campaign
from tests.crash.children import Place
from tests.crash.weather import Weather
from tests.object_store.s3.fault_proxy import serving

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from object_store.open import StoreConfig

pytestmark = pytest.mark.integration

#: A long run, for another set of deaths: CRASH_ROUNDS=500 CRASH_SEED=7
ROUNDS = int(os.environ.get("CRASH_ROUNDS", "5"))
SEED = int(os.environ.get("CRASH_SEED", "1"))
CHECK_EVERY = 6


@pytest.fixture
def clock() -> Clock:
    """Processes share real time alone."""
    return SystemClock()


@pytest.mark.timeout(1800 + 10 * ROUNDS)
@pytest.mark.parametrize("rate", [0.0, 0.05], ids=["fair weather", "bad weather"])
def test_whoever_dies_nothing_is_lost_doubled_or_left_behind(
    catalog: Catalog,
    catalog_url: str,
    s3_config: StoreConfig,
    clock: Clock,
    ids: Ids,
    rate: float,
    tmp_path: Path,
) -> None:
    assert s3_config.endpoint is not None
    with (
        contextlib.closing(open_store(s3_config, clock, ids)) as store,
        serving(Weather(s3_config.endpoint)) as weather,
    ):
        place = Place(catalog_url=catalog_url, store=replace(s3_config, endpoint=weather.endpoint))
        campaign = Campaign(place, catalog, store, clock, SEED, tmp_path)
        with campaign.running():
            weather.begin(SEED, rate)
            for number in range(1, ROUNDS + 1):
                campaign.round()
                if number % CHECK_EVERY == 0:
                    campaign.check()
            weather.begin(SEED, 0.0)
            campaign.check(go_on=False)
        assert sum(campaign.deaths.values()) == ROUNDS
        assert campaign.deaths.get("before its point", 0) < ROUNDS
        assert campaign.leaks() == []
        assert (sum(weather.seen.values()) > 0) == (rate > 0)
