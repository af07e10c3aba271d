"""Histories of real transactional clients have no anomaly, even if processes die or freeze.

`make transactions-check MINUTES=…` runs the long form; `SILTSTONE_SEED` replays its faults.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from itertools import count
from typing import TYPE_CHECKING

import pytest

from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from object_store.open import StoreConfig
from tests.crash.child_processes import ChildConfig
from tests.exactly_once.checker.anomalies import ALLOWED
from tests.exactly_once.checker.history import Outcome
from tests.exactly_once.client import SINKS, TOPICS
from tests.exactly_once.scenario import Scenario, Size, summary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.exactly_once.checker.history import History
    from tests.fixtures.postgres_pair import PostgresPair

pytestmark = pytest.mark.integration

MINUTES = float(os.environ.get("TRANSACTIONS_MINUTES", "0"))
SEED = int(os.environ.get("SILTSTONE_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
MINUTES_BETWEEN_CHECKS = 3.0
LOCAL_TOPICS = {"object": (), "local": TOPICS, "mixed": SINKS[:1]}
"""Which topics are local. If they are mixed, a transaction has records in both kinds, and group offsets."""


def _check(size: Size, pair: PostgresPair, directory: Path, seed: int) -> History:
    """Run one scenario and return its history, in which there must be no violation."""
    pair.set_synchronous()
    directory.mkdir(exist_ok=True)
    clock = SystemClock()
    url = f"{pair.url}?target_session_attrs=read-write"
    store = StoreConfig(url=str(directory / "objects"))
    config = ChildConfig(catalog_url=url, store=store, log=directory / "agent.log")
    with open_catalog(url, clock, SystemIds(clock)) as catalog:
        scenario = Scenario(size, config, pair, catalog, directory, seed)
        with scenario.running():
            scenario.disturb()
            scenario.wait_for_transactions()
            history, anomalies = scenario.finish()
    print(f"\n{summary(history, anomalies, scenario.log)}")  # noqa: T201  # the report of the long form
    violations = [each for each in anomalies if each.kind not in ALLOWED]
    assert violations == [], "\n".join(f"{each.kind}: {each.what}" for each in violations[:20])
    return history


@pytest.mark.timeout(600)  # each wait has a deadline of 240 s or less
@pytest.mark.parametrize("kind", ["object", "mixed"])
def test_transactions_survive_kills_freezes_zombies_and_failovers(
    postgres_pair: PostgresPair, tmp_path: Path, kind: str
) -> None:
    """Four seconds of faults, at least two in each lane, whose order is fixed."""
    size = Size(seconds=4, local_topics=LOCAL_TOPICS[kind])
    history = _check(size, postgres_pair, tmp_path / "run", seed=5)
    assert any(each.reads and each.outcome is Outcome.COMMITTED for each in history.transactions.values())


@pytest.mark.skipif(MINUTES == 0, reason="make transactions-check runs it")
@pytest.mark.timeout(0)
def test_long_histories(new_postgres_pair: Callable[[], PostgresPair], tmp_path: Path) -> None:
    """Histories of three minutes, until the time is over; each with new agents and a new catalog."""
    end = time.monotonic() + MINUTES * 60
    for number in count():
        if (left := end - time.monotonic()) <= 0:
            break
        size = Size(
            seconds=min(left, MINUTES_BETWEEN_CHECKS * 60),
            agents=3,
            writers=4,
            transfers=3,
            max_freeze_seconds=8.0,
            pause=(1.0, 8.0),
            client_pause=(4.0, 16.0),
            transactions=100,
            local_topics=[*LOCAL_TOPICS.values()][number % len(LOCAL_TOPICS)],
        )
        with contextlib.closing(new_postgres_pair()) as pair:
            _check(size, pair, tmp_path / f"run-{number}", SEED + number)
        shutil.rmtree(tmp_path / f"run-{number}" / "objects")
