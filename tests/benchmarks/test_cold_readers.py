"""The benchmark of readers of old records, with little data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.cold_readers import Case, cases, compare, write
from benchmarks.parts.kafka_process import Cluster

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.integration
def test_every_reader_reads_all_from_a_slow_store(tmp_path: Path) -> None:
    rows = [Case(1, 2, 8 << 20, delay_ms) for delay_ms in (0, 30)]
    with Cluster(tmp_path) as cluster:
        with cluster.agent() as agent:
            write(agent, 1, 300)
        fast, slow = compare(cluster, rows, 300, 1)
    assert (fast["delay_ms"], slow["delay_ms"]) == (0, 30)
    for row in (fast, slow):
        assert row["gets_per_100_mb"][0] > 0
        assert 1 <= row["read_factor"][0] < 2


def test_rows_are_compared_with_one_without_a_delay() -> None:
    rows = cases((1, 10))
    assert len(set(rows)) == len(rows) == 12
    assert all(row.delay_ms or rows[index + 1].delay_ms for index, row in enumerate(rows))
