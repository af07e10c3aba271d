"""The same random operations on Kafka's log and ours, which also exchange their directories."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.local_tier.interchange.pair import CONFIG, Pair

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.local_tier.interchange.kafka_engine import KafkaEngine

_SEEDS = [int(os.environ["SILTSTONE_SEED"])] if "SILTSTONE_SEED" in os.environ else range(5)
_STEPS = 120


@pytest.mark.parametrize("seed", _SEEDS)
def test_both_engines_do_the_same(kafka: KafkaEngine, tmp_path: Path, seed: int) -> None:
    """After each step the offsets, segments, epochs and producers agree; after a close, every byte.

    At each close and each crash the engines exchange their directories. A crash damages both in the same way.
    """
    pair = Pair(kafka, tmp_path, CONFIG, seed)
    steps: list[Callable[[], None]] = [
        *[pair.append] * 12,
        *[pair.advance_watermark] * 3,
        *[pair.end_transaction] * 3,
        pair.advance,
        pair.new_epoch,
        pair.roll,
        pair.flush,
        pair.advance_start,
        pair.retain,
        pair.truncate,
        lambda: pair.reopen(clean=True),
        lambda: pair.reopen(clean=False),
    ]
    for _ in range(_STEPS):
        pair.chance.choice(steps)()
    pair.close()
    pair.compare_files()
