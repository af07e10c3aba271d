"""The benchmark of many agents measures what it says."""

from __future__ import annotations

from benchmarks import catalog_scale


def test_the_benchmark_reports_each_case(catalog_url: str) -> None:
    report = catalog_scale.measure(catalog_url, None, agents=(2,), partitions=(3,), seconds=0.15, rounds=2)
    assert [(case["shared"], case["idempotent"]) for case in report["cases"]] == [
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    ]
    for case in report["cases"]:
        assert case["commits"] > 1
        assert case["least_s"] <= case["commits_s"] <= case["most_s"]
        assert case["p50_ms"] <= case["p99_ms"]
        assert case["wal_bytes"] > 0
        assert case["pg_ms"] >= 0
        assert case["plain"]["commits"] > 1
