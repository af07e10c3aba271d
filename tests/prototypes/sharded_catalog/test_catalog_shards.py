"""The benchmark of shards measures what it says."""

from __future__ import annotations

from benchmarks import catalog_shards


def test_the_benchmark_compares_the_layouts(urls: list[str]) -> None:
    layouts = {catalog_shards.ONE: urls[:1], "2 databases": urls}
    report = catalog_shards.measure(layouts, agents=(1,), partitions=(3,), seconds=0.3, rounds=1)
    one, two = report["cases"]
    assert (one["layout"], one["of_one"]) == (catalog_shards.ONE, 1)
    for case in (one, two):
        assert case["least_sections_s"] == case["sections_s"] > 0
        assert 0 < case["p50_ms"] <= case["p99_ms"]
        assert case["pg_ms"] >= 0
        assert case["load_ms"] > 0
