"""Siltstone's compaction as a DAG of Airflow 3: every five minutes, plan jobs and run them on Spark.

Put this file into Airflow's DAG folder, and set these Airflow variables:

    siltstone_application   path of deploy/spark_submit.py on the worker that submits
    siltstone_catalog       postgresql://user@host/database
    siltstone_object_store  s3://bucket/prefix

Siltstone must be installed in the Python of the driver and of the executors. The connection `spark_default`
names the cluster. Runs may overlap and repeat: the catalog gives each job to one of them, and the next run
takes over the jobs of one that died. The catalog's URL may contain a password and is therefore passed to the
driver in its environment.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

with DAG(
    dag_id="siltstone_compaction",
    description="Compact Siltstone's segment files and delete garbage.",
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
