"""Kafka Streams with exactly_once_v2 counts exactly while agents die and freeze.

`make streams-check MINUTES=…` runs the long form, in which instances of the application are killed, too.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

import pytest

from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from object_store.open import StoreConfig
from tests.crash.child_processes import ChildConfig
from tests.exactly_once.streams import StreamsScenario

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.integration

MINUTES = float(os.environ.get("STREAMS_MINUTES", "0"))
SEED = int(os.environ.get("SILTSTONE_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)


def _count_words(
    url: str,
    directory: Path,
    *,
    seconds: float,
    seed: int,
    instances: int,
    per_second: float,
    pause: tuple[float, float],
) -> None:
    clock = SystemClock()
    config = ChildConfig(
        catalog_url=url, store=StoreConfig(url=str(directory / "objects")), log=directory / "agent.log"
    )
    with open_catalog(url, clock, SystemIds(clock)) as catalog:
        scenario = StreamsScenario(config, catalog, directory, seed, instances, per_second)
        with scenario.running():
            scenario.wait_for_counts(100)
            begin = time.monotonic()
            scenario.disturb(seconds, at_least=3, pause=pause)
            minutes = (time.monotonic() - begin) / 60
            problems = scenario.problems()
            assert scenario.lines is not None
            words = sum(scenario.lines.words.values())
            print(f"\n{words} words, {minutes:.1f} minutes, {dict(scenario.log.counts)}: {problems}")  # noqa: T201  # the report of the long form
            for agent in scenario.agents:
                agent.stop()
    assert problems == []


@pytest.mark.timeout(600)
def test_a_word_count_is_exact_although_agents_are_killed(
    new_catalog_url: Callable[[], str], tmp_path: Path
) -> None:
    """At least three kills and freezes, whose order is fixed."""
    _count_words(new_catalog_url(), tmp_path, seconds=3, seed=2, instances=1, per_second=50, pause=(0.1, 0.5))


@pytest.mark.skipif(MINUTES == 0, reason="make streams-check runs it")
@pytest.mark.timeout(0)
def test_a_long_word_count(new_catalog_url: Callable[[], str], tmp_path: Path) -> None:
    _count_words(
        new_catalog_url(),
        tmp_path,
        seconds=MINUTES * 60,
        seed=SEED,
        instances=2,
        per_second=20,
        pause=(2.0, 12.0),
    )
