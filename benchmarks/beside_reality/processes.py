"""Processes of the run: an S3 server that logs its requests, PostgreSQL, agents and a watcher.

All serve on loopback and stop with this process. Requests carry the name of the sending program in their
User-Agent header (`AWS_SDK_UA_APP_ID`), so the server's log tells agents from jobs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.request import Request, urlopen

import orjson

from catalog.open import EmbeddedPostgres, migrate_catalog, open_catalog
from core.clock import SystemClock
from core.ids import SystemIds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cost_model.workload.definition import Workload
    from planner.settings import PlannerSettings

AGENT: Final = "siltstone-agent"
WATCHER: Final = "siltstone-watcher"
BUCKET: Final = "reality"
_REPOSITORY: Final = Path(__file__).parents[2]
_ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": "fake-key-id",
    "AWS_SECRET_ACCESS_KEY": "fake-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "SILTSTONE_HTTP": "127.0.0.1:0",
    "SILTSTONE_KAFKA": "127.0.0.1:0",
    "SILTSTONE_S3_REGION": "us-east-1",
    "SILTSTONE_SPARK_MASTER": "local[2]",
}
_STOP_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class S3Server:
    """The S3 server at `endpoint`, with its log."""

    endpoint: str

    def create_bucket(self) -> None:
        """Create the bucket; the server accepts any PUT."""
        urlopen(Request(f"{self.endpoint}/{BUCKET}", method="PUT"), timeout=60).close()

    def requests(self) -> list[dict[str, Any]]:
        """Return all requests since the start, in the order of their arrival."""
        with urlopen(f"{self.endpoint}/_requests?bucket={BUCKET}", timeout=240) as response:
            found: list[dict[str, Any]] = orjson.loads(response.read())
        return found


@dataclass(frozen=True, slots=True)
class RunningSystem:
    """Addresses of the running processes; agents are in the order of their zones."""

    s3: S3Server
    catalog_url: str
    kafka: tuple[tuple[str, int], ...]
    http: tuple[str, ...]
    logs: Path

    def agent_metric(self, name: str, label: str = "") -> float:
        """Return the sum of a metric over all agents and labels, or over those with one label."""
        total = 0.0
        for address in self.http:
            with urlopen(f"http://{address}/metrics", timeout=60) as response:
                for line in response.read().decode().splitlines():
                    if line.startswith((f"{name} ", f"{name}{{")) and label in line:
                        total += float(line.rpartition(" ")[2])
        return total


@contextmanager
def running_system(
    workload: Workload, planner: PlannerSettings, directory: Path, *, compact: bool = True
) -> Iterator[RunningSystem]:
    """Start everything, with the topics of the workload; without `compact` there is no watcher."""
    with ExitStack() as running:
        s3 = running.enter_context(_s3_server())
        url = running.enter_context(EmbeddedPostgres(directory / "data" / "catalog")).url
        _create_topics(url, workload)
        common = {
            "SILTSTONE_DATA_DIR": str(directory / "data"),  # with its PostgreSQL
            "SILTSTONE_OBJECT_STORE": f"s3://{BUCKET}/data",
            "SILTSTONE_S3_ENDPOINT": s3.endpoint,
        }
        agents = [
            running.enter_context(
                _program(
                    ["agent", "--stop-on-eof"],
                    {
                        **common,
                        "AWS_SDK_UA_APP_ID": AGENT,
                        "SILTSTONE_RACK": f"zone-{zone % workload.zones}",
                        "SILTSTONE_FLUSH_INTERVAL_MS": str(workload.flush_interval_ms),
                    },
                    directory / f"agent-{zone}.log",
                )
            )
            for zone in range(workload.agents)
        ]
        ready = [_ready(process, directory / f"agent-{zone}.log") for zone, process in enumerate(agents)]
        if compact:
            watcher = running.enter_context(
                _program(
                    ["compact", "--watch", "--interval", str(workload.planning_seconds)],
                    {
                        **common,
                        "AWS_SDK_UA_APP_ID": WATCHER,
                        "SILTSTONE_LOG_LEVEL": "info",
                        "SILTSTONE_MIN_INGESTION_FILES": str(planner.min_ingestion_files),
                    },
                    directory / "watcher.log",
                )
            )
            if watcher.poll() is not None:
                raise RuntimeError(f"the watcher ended: {directory / 'watcher.log'}")
        yield RunningSystem(
            s3=s3,
            catalog_url=url,
            kafka=tuple(_address(each["kafka"]) for each in ready),
            http=tuple(each["http"] for each in ready),
            logs=directory,
        )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


@contextmanager
def _s3_server() -> Iterator[S3Server]:
    """Run the S3 server of the tests, which ends with its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fixtures.moto_server"],
        cwd=_REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        try:
            assert process.stdout is not None
            server = S3Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
            server.create_bucket()
            yield server
        finally:
            process.kill()


@contextmanager
def _program(
    arguments: list[str], environment: Mapping[str, str], log_file: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of Siltstone, out of reach of ^C; stop it in order, or kill it with its children."""
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "siltstone", *arguments],
            cwd=_REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **_ENVIRONMENT, **environment},
            start_new_session=True,
        )
    with process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)


def _ready(process: subprocess.Popen[bytes], log: Path) -> dict[str, str]:
    """Return the addresses of an agent once it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"an agent did not start: {log.read_text()[-2000:]}")
    found: dict[str, str] = orjson.loads(line)
    return found


def _create_topics(url: str, workload: Workload) -> None:
    clock = SystemClock()
    ids = SystemIds(clock)
    migrate_catalog(url, clock, ids)
    with closing(open_catalog(url, clock=clock, ids=ids)) as catalog:
        for topic in workload.topics:
            catalog.topics.create(topic.name, topic.partitions, dict(topic.config))
