"""The modules that decide about data, and the tests that judge each of them within seconds.

A mutant is judged by the first failing test, so the quickest tests come first. Tests that start Spark or
agents are left out: they would take minutes for each mutant.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Target(NamedTuple):
    """Modules that the same tests judge. A mutant whose tests exceed the timeout counts as killed."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    timeout_seconds: float = 120.0
    is_slow: bool = False


TARGETS: Final = {
    "sequences": Target(
        ("catalog/commit/sequences.py", "catalog/commit/assignment.py"),
        (
            "tests/catalog/commit/test_sequences.py",
            "tests/catalog/commit/test_bulk_assignment.py",
            "tests/catalog/commit/test_commit.py",
        ),
    ),
    "commit": Target(
        (
            "catalog/commit/bulk_assignment.py",
            "catalog/commit/columns.py",
            "catalog/commit/producers.py",
            "catalog/commit/repository.py",
            "catalog/commit/results.py",
        ),
        (
            "tests/catalog/commit/test_bulk_assignment.py",
            "tests/catalog/commit/test_commit.py",
            "tests/catalog/commit/test_producers.py",
        ),
    ),
    "publish": Target(
        ("catalog/jobs/publish.py", "catalog/jobs/validation.py"),
        ("tests/catalog/jobs/test_publish.py", "tests/catalog/jobs/test_jobs.py"),
    ),
    "garbage": Target(
        ("catalog/lifecycle/garbage.py", "maintenance/garbage_collection.py", "maintenance/owners.py"),
        ("tests/maintenance/test_garbage_collection.py", "tests/catalog/lifecycle/test_garbage.py"),
    ),
    "dedupe": Target(
        (
            "object_format/dedupe/buckets.py",
            "object_format/dedupe/filter.py",
            "object_format/dedupe/key_table.py",
            "object_format/dedupe/long_batches.py",
            "object_format/dedupe/long_sections.py",
            "object_format/dedupe/rewrite.py",
            "object_format/dedupe/survivor_finder.py",
            "object_format/dedupe/survivors.py",
        ),
        (
            "tests/object_format/dedupe/test_dedupe.py",
            "tests/object_format/dedupe/test_key_table.py",
            "tests/object_format/dedupe/test_buckets.py",
            "tests/object_format/dedupe/test_long_batches.py",
            "tests/object_format/dedupe/test_merge.py",
        ),
    ),
    "early_filter": Target(
        ("object_format/dedupe/early_filter.py",), ("tests/object_format/dedupe/test_early_filter.py",)
    ),
    "planner": Target(
        (
            "planner/cleaning.py",
            "planner/clustering.py",
            "planner/dirtiness.py",
            "planner/fault_bisection.py",
            "planner/ingestion.py",
            "planner/merging.py",
            "planner/score.py",
            "planner/selection.py",
            "planner/snapshot.py",
        ),
        (
            "tests/planner/test_policy.py",
            "tests/planner/test_dirtiness.py",
            "tests/planner/test_merging.py",
            "tests/planner/test_clustering.py",
            "tests/planner/test_fault_bisection.py",
            "tests/planner/test_policy_properties.py",
        ),
    ),
    "recovery": Target(
        ("local_tier/log/recovery.py", "local_tier/log/log_loader.py"),
        ("tests/local_tier/log/test_log_loader.py", "tests/local_tier/log/test_recovery_points.py"),
    ),
    "formats": Target(
        ("object_format/segment_file/features.py", "spark_jobs/task/arrangement.py"),
        (
            "tests/object_format/segment_file/test_features.py",
            "tests/spark_jobs/task/test_unique_keys.py",
            "tests/spark_jobs/task/test_byte_ranges.py",
            "tests/spark_jobs/task/test_retention_windows.py",
            "tests/agent/kafka/test_unsupported_files.py",
        ),
    ),
    "kernels": Target(
        (
            "object_format/kernels/dedupe/buckets.py",
            "object_format/kernels/dedupe/filter.py",
            "object_format/kernels/dedupe/fingerprints.py",
            "object_format/kernels/dedupe/key_table.py",
            "object_format/kernels/dedupe/long_batches.py",
            "object_format/kernels/dedupe/retained_records.py",
        ),
        (
            "tests/object_format/dedupe/test_key_table.py",
            "tests/object_format/dedupe/test_dedupe.py",
            "tests/object_format/dedupe/test_buckets.py",
            "tests/object_format/dedupe/test_long_batches.py",
        ),
        timeout_seconds=900.0,
        is_slow=True,
    ),
}
