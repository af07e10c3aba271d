"""Crashes of agents and workers while records are written: nothing is lost, duplicated or leaked."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core.clock import SystemClock
from object_store.open import open_store
from tests.crash.campaign import Campaign
from tests.crash.child_processes import ChildConfig
from tests.object_store.s3.fault_proxy import RandomFaultProxy, serving

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from object_store.open import StoreConfig

pytestmark = pytest.mark.integration

#: A long run, for another set of kills: CRASH_ROUNDS=500 CRASH_SEED=7
ROUNDS = int(os.environ.get("CRASH_ROUNDS", "5"))
SEED = int(os.environ.get("CRASH_SEED", "1"))
CHECK_EVERY = 6


@pytest.fixture
def clock() -> Clock:
    """Processes share nothing but real time."""
    return SystemClock()


@pytest.mark.timeout(1800 + 10 * ROUNDS)
@pytest.mark.parametrize("rate", [0.0, 0.05], ids=["no S3 faults", "S3 faults"])
def test_crashes_lose_duplicate_and_leak_nothing(
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
        serving(RandomFaultProxy(s3_config.endpoint)) as proxy,
    ):
        config = ChildConfig(catalog_url=catalog_url, store=replace(s3_config, endpoint=proxy.endpoint))
        campaign = Campaign(config, catalog, store, clock, SEED, tmp_path)
        with campaign.running():
            proxy.begin(SEED, rate)
            for number in range(1, ROUNDS + 1):
                campaign.round()
                if number % CHECK_EVERY == 0:
                    campaign.check()
            proxy.begin(SEED, 0.0)
            campaign.check(restart=False)
        assert sum(campaign.kills.values()) == ROUNDS
        assert campaign.kills.get("point not reached", 0) < ROUNDS
        assert campaign.leaks() == []
        assert (sum(proxy.counts.values()) > 0) == (rate > 0)
