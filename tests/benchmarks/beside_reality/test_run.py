"""A short run of the real processes, without jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.beside_reality.run import measure
from benchmarks.beside_reality.workload import Duration, workload

if TYPE_CHECKING:
    from pathlib import Path


def test_a_short_run_counts_the_requests_of_agents(tmp_path: Path) -> None:
    """Two agents write files, and read the files of each other for consumers."""
    duration = Duration(warm_up_seconds=0.5, measured_seconds=2.0)
    figures, rounds, facts = measure(
        workload(duration, agents=2, batches_per_second=20), duration, tmp_path, compact=False
    )
    counts = figures.counts
    assert counts.put_ingest > 0
    assert counts.get_fetch > 0
    assert counts.fetch_bytes > 0
    assert counts.get_compaction == counts.written_objects == figures.others == 0
    assert figures.sample.objects > 0
    assert figures.sample.rows > 0
    assert rounds == []
    assert facts["failed_requests"] == 0
    assert facts["batches"] > 0
