"""A watcher whose Spark Connect server restarts, with a real server."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from catalog.model import JobState
from core.clock import ManualClock
from siltstone.compaction.compactor import CompactionOptions
from siltstone.compaction.watcher import Watcher
from siltstone.interrupts import Interrupts
from siltstone.settings.sources import load_settings
from spark_jobs.session.spark_session import SparkSettings
from spark_jobs.session_manager import SparkSessionManager
from spark_jobs.transport import pack_spec
from tests.fixtures.ports import lasting_ports
from tests.siltstone.compaction.test_watcher import Log
from tests.spark_jobs.connect_server import connect_server
from tests.spark_jobs.faults.call_on_unpickling import CallOnUnpickling

if TYPE_CHECKING:
    from catalog.model import JobSpec
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids

pytestmark = pytest.mark.spark
_MAX_POLLS = 3
_BACK_OFF_SECONDS = 60


@pytest.fixture
def _client_of_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process connect to a server, and be as before afterwards."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # PySpark would set it and leave it
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)


def _read_nothing(pipe: Path) -> None:
    """Let a process that waits for a reader of the pipe continue."""
    os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))


@pytest.mark.usefixtures("_client_of_connect")
def test_a_watcher_continues_after_its_connect_server_has_restarted(
    catalog: Catalog, clock: Clock, tmp_path: Path, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two jobs, and while it runs one. The new server does not know the session."""
    assert isinstance(clock, ManualClock)
    (port,) = lasting_ports(1)
    session = SparkSessionManager(SparkSettings(master=f"sc://127.0.0.1:{port}"))
    settings = load_settings({"data_dir": tmp_path / "data", "max_job_files": 1})
    started = tmp_path / "started"  # a pipe, so that the worker waits until the test has opened it
    os.mkfifo(started)
    waited: list[JobSpec] = []

    def pack(spec: JobSpec) -> bytes:
        if waited or spec.partitions[0].topic_name != "meanwhile":
            return pack_spec(spec)
        waited.append(spec)
        return CallOnUnpickling.of(Path.read_bytes, started)

    monkeypatch.setattr("spark_jobs.compact.pack_spec", pack)
    log = Log(catalog, tmp_path / "objects", ids)
    with closing(log.store), ExitStack() as servers, session:
        watcher = Watcher(log.context(), settings, CompactionOptions(), session=session)

        def restart_server() -> None:
            servers.close()
            servers.enter_context(connect_server(port, tmp_path / f"server after {len(log.partitions)}"))

        def compact(topic: str) -> None:
            log.add(topic)
            for _ in range(_MAX_POLLS):
                watcher.poll(Interrupts())
                clock.advance(_BACK_OFF_SECONDS)
            assert log.is_compacted()

        restart_server()
        compact("before")
        restart_server()
        compact("after")
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(compact, "meanwhile")
            running.add_done_callback(lambda _: _read_nothing(started))  # no worker may have opened it
            with started.open("wb"):
                restart_server()
            running.result()
    assert catalog.jobs.counts()[JobState.COMPLETED] == len(catalog.jobs.list()) == 3
