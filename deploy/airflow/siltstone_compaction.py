"""Siltstone's compaction as a DAG of Airflow 3: every few minutes a round of planning, and its jobs on Spark.

Put this file into Airflow's folder of DAGs and set, as Airflow variables or in its environment:

    siltstone_application   deploy/spark_submit.py, where the worker that submits finds it
    siltstone_catalog       postgresql://user@host/database
    siltstone_object_store  s3://bucket/prefix

Siltstone must be installed where the driver and the executors run. The connection `spark_default` names the
cluster. Rounds may overlap and repeat: the catalog gives every job to one of them, and a round that dies
leaves its jobs to the next. The catalog's URL reaches the driver by its environment, as it may hold a
password.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

with DAG(
    dag_id="siltstone_compaction",
    description="Deduplicate and rewrite what Siltstone's agents have written, and delete what is dead.",
    schedule=timedelta(minutes=5),
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    tags=["siltstone"],
) as dag:
    SparkSubmitOperator(
        task_id="compact",
        conn_id="spark_default",
        name="siltstone-compaction",
        application="{{ var.value.siltstone_application }}",
        application_args=["compact", "--once", "--json", "--log-level", "info"],
        env_vars={
            "SILTSTONE_CATALOG": "{{ var.value.siltstone_catalog }}",
            "SILTSTONE_OBJECT_STORE": "{{ var.value.siltstone_object_store }}",
        },
        driver_memory="1g",
        executor_memory="1g",
        execution_timeout=timedelta(hours=6),
    )
