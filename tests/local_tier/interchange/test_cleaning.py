"""Logs that one engine has cleaned and the other recovers after a crash."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from local_tier.config import LogConfig
from object_format.record_batch.records import encode_batch
from tests.local_tier.crash.crash_check import contents
from tests.local_tier.interchange.pair import COMPACTED as PAIR_COMPACTED
from tests.local_tier.interchange.pair import Pair
from tests.local_tier.logs import LogHarness, crash

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.local_tier.interchange.kafka_engine import KafkaEngine

COMPACTED = LogConfig(
    segment_bytes=4_000,
    segment_index_bytes=12 * 100,
    index_interval_bytes=200,
    compact=True,
    delete=False,
    retention_ms=-1,
    message_timestamp_after_max_ms=2**63 - 1,
)


@pytest.mark.parametrize("recovery_point", [0, 1, 777])
@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_recovery_keeps_a_log_that_kafka_has_cleaned(
    kafka: KafkaEngine, tmp_path: Path, recovery_point: int, policy: str
) -> None:
    """Kafka cleans above the recovery point that it has checkpointed, and leaves gaps between segments."""
    harness = LogHarness(tmp_path)
    log = kafka.open(harness.directory, COMPACTED)
    for number in range(900):
        key = b"often %d" % (number % 30) if number % 7 else b"once %d" % number
        log.append(encode_batch([1_000 + number], [key], [bytes(60)]), 0)
    log.ask("watermark", 900)
    active = log.state()["segments"][-1][0]
    log.ask("clean", 0, active)
    bases = [base for base, _ in log.state()["segments"]]
    log.ask("crash")
    config = COMPACTED if policy == "compact" else replace(COMPACTED, compact=False, delete=True)
    ours = harness.open(config, recovery_point=recovery_point)
    found = [offset for offset, _ in contents(ours)]
    assert [segment.base_offset for segment in ours.segments] == bases
    ends = [segment.next_offset() for segment in ours.segments]
    assert any(end < base for end, base in zip(ends, bases[1:], strict=False)), "no gap between segments"
    assert len([offset for offset in found if not offset % 7]) == len(range(0, 900, 7))
    assert found[-1] == 899
    crash(ours)


@pytest.mark.parametrize("seed", range(3))
def test_both_cleaners_keep_the_same_records(kafka: KafkaEngine, tmp_path: Path, seed: int) -> None:
    """Each engine then continues with what the other has cleaned, recovers it, and cleans it again.

    Batches that lost records differ in their base timestamps only, so batches and records are compared.
    """
    pair = Pair(kafka, tmp_path, PAIR_COMPACTED, seed)
    steps: list[Callable[[], None]] = [
        *[pair.append] * 12,
        *[pair.advance_watermark] * 3,
        *[pair.end_transaction] * 3,
        pair.advance,
        pair.new_epoch,
        pair.roll,
    ]
    for _ in range(3):
        for _ in range(40):
            pair.chance.choice(steps)()
        pair.clean()
        pair.compare_records()
        pair.reopen(clean=False)
