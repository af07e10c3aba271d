"""The benchmark of a backlog measures what it says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from typing import TYPE_CHECKING

from benchmarks.backlog import Bench, Load, case_of, serve_agents
from tests.siltstone.compaction.test_watcher import InProcessSession

if TYPE_CHECKING:
    from pathlib import Path


def test_the_benchmark_compacts_all_files_that_arrive(catalog_url: str, tmp_path: Path) -> None:
    """A process would hold the agents; here it is a thread."""
    load = Load(files=1, partitions=3, records=2)
    ours, theirs = Pipe()
    session = InProcessSession(2)
    session.start()
    with ThreadPoolExecutor(1) as threads:
        agents = threads.submit(serve_agents, theirs, 10)
        assert ours.recv() == "ready"
        rounds = [Bench(catalog_url, tmp_path).round([ours], session, load)]
        ours.send(None)
        agents.result(timeout=60)
    case = case_of(2, load, rounds)
    assert (case["workers"], case["jobs"]) == (2, 1)
    assert case["drain"]["extents_s"] > 0
    assert case["arrival"]["records_s"] > case["arrival"]["extents_s"]
