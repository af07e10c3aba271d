"""The periodic tasks of a log manager, on a clock that tests control."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.local_tier.batches import batch
from tests.local_tier.manager.managers import SMALL, Machine, fill, orders

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine((tmp_path / "a", tmp_path / "b"))


def test_logs_are_flushed_by_flush_ms(machine: Machine) -> None:
    manager = machine.start()
    log = orders(manager, config=replace(SMALL, flush_ms=40_000, segment_bytes=1 << 20))
    fill(log, 5)
    points = []
    for seconds in (30, 9, 1):
        machine.scheduler.advance(seconds * 1000)
        points.append(log.recovery_point)
    manager.close()

    assert points == [0, 0, 5]


def test_the_periodic_task_removes_expired_producers(machine: Machine) -> None:
    """It runs every ten minutes as in Kafka, so that the state is limited to the producers of a day."""
    manager = machine.start()
    log = orders(manager)
    now_ms = machine.clock.now_ms()
    log.append_as_leader(batch(0, 1, producer=(7, 0, 0), timestamp=now_ms), 0)
    known = []
    for hours in (23, 2):
        machine.scheduler.advance(hours * 3_600_000)
        known.append(set(log.last_records_of_producers()))
    manager.close()

    assert known == [{7}, set()]


def test_a_record_may_be_readable_for_25_minutes_with_a_retention_of_10(machine: Machine) -> None:
    """The times to fill, expire, check and unlink add up, with 150 bytes every 5 seconds."""
    config = replace(
        SMALL, segment_bytes=16_384, retention_ms=600_000, segment_index_bytes=1 << 16, log_append_time=True
    )
    machine.configs["orders"] = config
    manager = machine.start()
    log = orders(manager, config=config)
    record = next(made for size in range(100) if len(made := batch(0, size=size)) == 150)
    first = machine.clock.now_ms()
    hidden = gone = None
    while gone is None:
        log.append_as_leader(bytearray(record), 0)
        log.update_high_watermark(log.log_end_offset)
        machine.scheduler.advance(5_000)
        age = (machine.clock.now_ms() - first) / 60_000
        if hidden is None and log.log_start_offset > 0:
            hidden = age
        names = {path.name for path in log.directory.iterdir() if path.name.startswith("0" * 20 + ".log")}
        if not names:
            gone = age
    manager.close()

    assert hidden is not None
    assert 19 <= hidden <= 24.1
    assert hidden + 1 <= gone <= 25.2
    assert log.log_start_offset == 109
