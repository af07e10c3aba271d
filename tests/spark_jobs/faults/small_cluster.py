"""A Spark cluster of two executors on this machine, and an application that runs a job on it.

    python -m tests.spark_jobs.faults.small_cluster <catalog> <object store> <directory of planned faults>
        <program that the executors run as their Python>

claims a job, runs it by the shuffle plan with the planned faults, and prints the report. The executors have
different hosts, 127.0.0.1 and 127.0.0.2, because Spark never runs two copies of a task on one host.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson
import pytest
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from catalog.open import open_catalog
from core.clock import ManualClock, SystemClock
from core.ids import SystemIds
from object_store.open import StoreConfig
from spark_jobs.compact import run_jobs
from spark_jobs.session.java import find_java, write_java_home
from spark_jobs.session.spark_session import SparkSettings, spark_session
from spark_jobs.shuffle.plan import PlanChoice
from tests.spark_jobs.faults.planned_faults import PlannedFaults
from tests.spark_jobs.quick_java import quick_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOSTS: Final = ("127.0.0.1", "127.0.0.2")
APPLICATION: Final = {
    "spark.driver.host": HOSTS[0],
    "spark.driver.bindAddress": HOSTS[0],
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": quick_java(),
    # Copy a task at once if it runs longer than half of the others did.
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "1ms",
    "spark.speculation.quantile": "0.5",
    # Retry fetches from a dead executor only once.
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "50ms",
}


@contextmanager
def cluster(directory: Path, hosts: Sequence[str] = HOSTS) -> Iterator[str]:
    """Start a master, and a worker for each host, in one Java process; yield the master's URL."""
    conf = SparkConf(loadDefaults=False)
    conf.set("spark.driver.memory", "256m")
    gateway = launch_gateway(conf)  # type: ignore[no-untyped-call]  # PySpark's own, and untyped
    try:
        jvm = gateway.jvm
        settings = jvm.org.apache.spark.SparkConf(False)
        for key in ("spark.master.rest.enabled", "spark.shuffle.service.enabled"):
            settings.set(key, "false")
        deploy = jvm.org.apache.spark.deploy
        master = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, settings)._1()
        url = f"spark://{HOSTS[0]}:{master.address().port()}"
        masters = gateway.new_array(jvm.java.lang.String, 1)
        masters[0] = url
        for number, host in enumerate(hosts):
            deploy.worker.Worker.startRpcEnvAndEndpoint(
                host,
                *(0, 0),  # any free ports
                *(1, 600),  # cores, and MiB of memory for executors
                masters,
                str(directory / host),
                jvm.scala.Some(number),
                settings,
                jvm.scala.Option.apply(None),
            )
        yield url
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def main(catalog_url: str, store_url: str, faults: str, python: str) -> None:
    """Run a job.

    The Python is set as by `spark-defaults.conf`, whose settings become properties of Java. Another directory
    of such a file would be on the class path, which then differs from that of the archive of classes.
    """
    clock = ManualClock()
    ids = SystemIds(SystemClock())
    with tempfile.TemporaryDirectory() as scratch:
        os.environ |= {
            "JAVA_HOME": str(write_java_home(find_java(os.environ), Path(scratch) / "java")),
            "SPARK_LOCAL_IP": HOSTS[0],
            # For the cluster and the driver.
            "SPARK_SUBMIT_OPTS": f"{quick_java()} -Dspark.pyspark.python={python}",
            "PYSPARK_PYTHON": sys.executable,
        }
        with (
            pytest.MonkeyPatch.context() as patch,
            closing(open_catalog(catalog_url, clock, ids)) as catalog,
            cluster(Path(scratch)) as master,
            spark_session(SparkSettings(master=master, conf=APPLICATION)) as spark,
        ):
            PlannedFaults(Path(faults), Path(scratch)).install(patch)
            report = run_jobs(
                spark,
                catalog.jobs.claim("a cluster", 1),
                store=StoreConfig(store_url),
                book=catalog.jobs,
                clock=clock,
                ids=ids,
                plan=PlanChoice.SHUFFLE,
            )
    sys.stdout.write(orjson.dumps(asdict(report)).decode() + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
