"""All faults at once: nothing acknowledged is lost, duplicated or reordered, and nothing is left behind.

`make campaign MINUTES=…` runs the long form, with compaction on Spark. `SILTSTONE_SEED` replays its faults.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from object_store.open import open_store
from tests.crash.campaign import Campaign, CampaignSettings
from tests.crash.child_processes import ChildConfig
from tests.end_to_end.processes import leftovers
from tests.object_store.s3.fault_proxy import RandomFaultProxy, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from object_store.open import StoreConfig
    from tests.fixtures.postgres_pair import PostgresPair

pytestmark = pytest.mark.integration

MINUTES = float(os.environ.get("CAMPAIGN_MINUTES", "0"))
SEED = int(os.environ.get("SILTSTONE_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
MINUTES_BETWEEN_CHECKS = 3.0
ALWAYS = {
    "agent: freeze",
    "agent: full disk",
    "catalog: crash",
    "catalog: failover",
    "store: outage",
    "store: errors",
    "worker: freeze",
    "worker: crash at a point",
}
"""The first two faults of each lane of the short form."""


@contextlib.contextmanager
def campaign_of(
    settings: CampaignSettings, pair: PostgresPair, store_config: StoreConfig
) -> Iterator[Campaign]:
    """Prepare a campaign; check afterwards that nothing is left."""
    pair.set_synchronous()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # every fault would be in its log
    clock = SystemClock()
    ids = SystemIds(clock)
    url = f"{pair.url}?target_session_attrs=read-write"
    assert store_config.endpoint is not None
    with (
        contextlib.closing(open_store(store_config, clock, ids)) as store,
        serving(RandomFaultProxy(store_config.endpoint)) as proxy,
        open_catalog(url, clock, ids) as catalog,
    ):
        config = ChildConfig(
            catalog_url=url,
            store=replace(store_config, endpoint=proxy.endpoint),
            log=settings.directory / "worker.log",
        )
        campaign = Campaign(settings, config, pair, proxy, catalog, store, clock)
        try:
            with campaign.running():
                yield campaign
            assert campaign.leaks() == []
        finally:
            print(f"\n{campaign.summary()}")  # noqa: T201  # the report of the long form
    assert leftovers(settings.directory) == []


@pytest.mark.timeout(600)  # each wait has a deadline of 240 s or less; this one ends the sum of them
def test_all_faults_at_once_lose_duplicate_reorder_and_leak_nothing(
    postgres_pair: PostgresPair, s3_config: StoreConfig, tmp_path: Path
) -> None:
    """Eight seconds of faults, whose order is fixed; compaction runs in one process, without Spark.

    Each lane reaches its second fault, on a busy machine too.
    """
    settings = CampaignSettings(
        seed=3,
        directory=tmp_path,
        agents=2,
        spark=False,
        rate=20,
        groups=("classic", "consumer", "aio"),
        max_freeze_seconds=2.0,
        pause=(0.2, 1.0),
        group_seconds=240,
    )
    with campaign_of(settings, postgres_pair, s3_config) as campaign:
        campaign.run_for(8, at_least=2)
        assert set(campaign.log.counts) >= ALWAYS
        campaign.check()
        assert campaign.ledger.committed_transactions


@pytest.mark.skipif(MINUTES == 0, reason="make campaign runs it")
@pytest.mark.timeout(0)
@pytest.mark.spark
def test_a_long_campaign(postgres_pair: PostgresPair, s3_config: StoreConfig, tmp_path: Path) -> None:
    settings = CampaignSettings(seed=SEED, directory=tmp_path, loses_commits=True, is_long=True)
    with campaign_of(settings, postgres_pair, s3_config) as campaign:
        end = time.monotonic() + MINUTES * 60
        while (left := end - time.monotonic()) > 0:
            campaign.run_for(min(left, MINUTES_BETWEEN_CHECKS * 60))
            campaign.check()
