"""The modules that decide about data, and the tests that judge each of them.

Tests that start Spark, agents or servers are left out: they would take minutes for each mutant.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Target(NamedTuple):
    """Modules that the same tests judge; at most `most` mutants of each module, chosen at random."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    most: int | None = None


TARGETS: Final = {
    "commit": Target(
        (
            "catalog/commit/assignment.py",
            "catalog/commit/attempt.py",
            "catalog/commit/bulk_assignment.py",
            "catalog/commit/columns.py",
            "catalog/commit/file_gaps.py",
            "catalog/commit/producers.py",
            "catalog/commit/readoption.py",
            "catalog/commit/repository.py",
            "catalog/commit/results.py",
            "catalog/commit/sequence_gaps.py",
            "catalog/commit/sequences.py",
        ),
        (
            "tests/catalog/commit/test_sequences.py",
            "tests/catalog/commit/test_sequence_gaps.py",
            "tests/catalog/commit/test_bulk_assignment.py",
            "tests/catalog/commit/test_results.py",
            "tests/catalog/commit/test_commit.py",
            "tests/catalog/commit/test_commit_together.py",
            "tests/catalog/commit/test_producers.py",
            "tests/catalog/topics/test_extents.py",
            "tests/maintenance/readopt/test_missing_topics.py",
            "tests/maintenance/readopt/test_readoption.py",
            "tests/catalog/transactions/test_transactions.py",
        ),
    ),
    "publish": Target(
        ("catalog/jobs/publish.py", "catalog/jobs/validation.py"),
        (
            "tests/catalog/jobs/test_validation.py",
            "tests/catalog/jobs/test_publish.py",
            "tests/catalog/jobs/test_jobs.py",
            "tests/catalog/jobs/test_jobs_of_transactions.py",
            "tests/catalog/jobs/test_byte_ranges.py",
            "tests/catalog/jobs/test_concurrent_changes.py",
            "tests/catalog/test_invariants.py",
        ),
    ),
    "garbage": Target(
        (
            "catalog/lifecycle/deletions.py",
            "catalog/lifecycle/garbage.py",
            "maintenance/garbage_collection.py",
            "maintenance/owners.py",
        ),
        (
            "tests/catalog/lifecycle/test_deletions.py",
            "tests/catalog/lifecycle/test_garbage.py",
            "tests/catalog/transactions/test_local_partitions.py",
            "tests/maintenance/test_garbage_collection.py",
            "tests/maintenance/test_lifecycle.py",
            "tests/maintenance/test_owners.py",
        ),
    ),
    "epochs": Target(
        (
            "catalog/lifecycle/incarnation.py",
            "catalog/lifecycle/lost_commits.py",
            "catalog/lifecycle/missing_topics.py",
            "catalog/lifecycle/reachability.py",
            "catalog/topics/lost.py",
            "maintenance/readopt/file_contents.py",
            "maintenance/readopt/lost_files.py",
            "maintenance/readopt/readoption.py",
            "maintenance/readopt/run.py",
        ),
        (
            "tests/catalog/lifecycle/test_evidence.py",
            "tests/catalog/lifecycle/test_incarnation.py",
            "tests/catalog/lifecycle/test_outages.py",
            "tests/catalog/topics/test_deleted.py",
            "tests/catalog/topics/test_lost.py",
            "tests/maintenance/readopt/test_file_contents.py",
            "tests/maintenance/readopt/test_interruptions.py",
            "tests/maintenance/readopt/test_missing_topics.py",
            "tests/maintenance/readopt/test_readoption.py",
            "tests/maintenance/test_restore.py",
        ),
    ),
    "losses": Target(
        (
            "agent/write/acknowledged_commits.py",
            "agent/write/failed_producers.py",
            "agent/write/loss_recovery.py",
        ),
        (
            "tests/agent/write/test_acknowledged_commits.py",
            "tests/agent/write/test_failed_producers.py",
            "tests/agent/write/test_loss_recovery.py",
            "tests/agent/write/test_recovery_faults.py",
        ),
    ),
    "dedupe": Target(
        (
            "object_format/dedupe/buckets.py",
            "object_format/dedupe/early_filter.py",
            "object_format/dedupe/filter.py",
            "object_format/dedupe/fingerprints.py",
            "object_format/dedupe/key_table.py",
            "object_format/dedupe/long_batches.py",
            "object_format/dedupe/long_sections.py",
            "object_format/dedupe/recompression.py",
            "object_format/dedupe/rewrite.py",
            "object_format/dedupe/survivor_finder.py",
            "object_format/dedupe/survivors.py",
        ),
        (
            "tests/object_format/dedupe/test_buckets.py",
            "tests/object_format/dedupe/test_dedupe.py",
            "tests/object_format/dedupe/test_early_filter.py",
            "tests/object_format/dedupe/test_kernel_models.py",
            "tests/object_format/dedupe/test_key_table.py",
            "tests/object_format/dedupe/test_long_batches.py",
            "tests/object_format/dedupe/test_merge.py",
            "tests/object_format/dedupe/test_plan_models.py",
            "tests/object_format/dedupe/test_rewrite.py",
        ),
    ),
    "planner": Target(
        (
            "planner/jobs/cleaning.py",
            "planner/jobs/clustering.py",
            "planner/dirtiness.py",
            "planner/jobs/fault_bisection.py",
            "planner/jobs/ingestion.py",
            "planner/jobs/merging.py",
            "planner/next_change.py",
            "planner/pace.py",
            "planner/policy.py",
            "planner/score.py",
            "planner/selection.py",
            "planner/snapshot.py",
        ),
        (
            "tests/planner/jobs/test_clustering.py",
            "tests/planner/test_dirtiness.py",
            "tests/planner/jobs/test_fault_bisection.py",
            "tests/planner/jobs/test_fault_bisection_groups.py",
            "tests/planner/jobs/test_ingestion.py",
            "tests/planner/jobs/test_merging.py",
            "tests/planner/jobs/test_merging_groups.py",
            "tests/planner/test_next_change.py",
            "tests/planner/test_pace.py",
            "tests/planner/test_policy.py",
            "tests/planner/test_policy_properties.py",
            "tests/planner/test_score.py",
            "tests/planner/test_selection.py",
            "tests/planner/test_snapshot.py",
            "tests/planner/test_transactions.py",
            "tests/planner/test_views.py",
        ),
    ),
    "recovery": Target(
        ("local_tier/log/recovery.py", "local_tier/log/log_loader.py"),
        (
            "tests/local_tier/log/test_log_loader.py",
            "tests/local_tier/log/test_recovery_model.py",
            "tests/local_tier/log/test_recovery_points.py",
            "tests/local_tier/log/test_unified_log.py",
        ),
    ),
    "formats": Target(
        ("object_format/segment_file/features.py", "spark_jobs/task/arrangement.py"),
        (
            "tests/object_format/segment_file/test_features.py",
            "tests/maintenance/readopt/test_file_contents.py",
            "tests/spark_jobs/shuffle/test_shares.py",
            "tests/spark_jobs/task/test_arrangement.py",
            "tests/spark_jobs/task/test_open_streams.py",
            "tests/spark_jobs/task/test_unique_keys.py",
            "tests/spark_jobs/task/test_byte_ranges.py",
            "tests/spark_jobs/task/test_retention_windows.py",
        ),
    ),
    "kernels": Target(
        (
            "object_format/kernels/dedupe/buckets.py",
            "object_format/kernels/dedupe/filter.py",
            "object_format/kernels/dedupe/fingerprints.py",
            "object_format/kernels/dedupe/key_table.py",
            "object_format/kernels/dedupe/long_batches.py",
            "object_format/kernels/dedupe/merge.py",
            "object_format/kernels/dedupe/retained_records.py",
            "object_format/kernels/dedupe/rewrite.py",
        ),
        (
            "tests/object_format/dedupe/test_buckets.py",
            "tests/object_format/dedupe/test_dedupe.py",
            "tests/object_format/dedupe/test_early_filter.py",
            "tests/object_format/dedupe/test_kernel_models.py",
            "tests/object_format/dedupe/test_key_table.py",
            "tests/object_format/dedupe/test_long_batches.py",
            "tests/object_format/dedupe/test_merge.py",
            "tests/object_format/dedupe/test_plan_models.py",
            "tests/object_format/dedupe/test_seeds.py",
        ),
        most=10,
    ),
}
