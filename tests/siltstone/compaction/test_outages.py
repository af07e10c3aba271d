"""Watchers and agents while PostgreSQL and the S3 server are stopped and started again."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

import pytest
from structlog.testing import capture_logs

from catalog.model import PartitionId
from catalog.open import DatabaseLimits, open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from object_store.binding import verify_binding
from object_store.open import open_store
from siltstone.compaction.compactor import CompactionOptions
from siltstone.compaction.watcher import Watcher
from siltstone.context import AppContext
from siltstone.interrupts import Interrupts
from siltstone.settings.sources import load_settings
from tests.end_to_end.forked_command import ForkedCommand
from tests.end_to_end.processes import TIMEOUT_SECONDS, as_url
from tests.siltstone.compaction.test_watcher import InProcessSession, until
from tests.spark_jobs.catalog_log import CatalogLog
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from catalog.model import Job
    from tests.fixtures.restartable import RestartablePostgres, RestartableS3

pytestmark = pytest.mark.integration
# Longer than the machine may stall, shorter than a test may wait
LIMITS: Final = DatabaseLimits(connect_seconds=1)


@pytest.fixture
def watcher(
    restartable_postgres: RestartablePostgres, restartable_s3: RestartableS3, tmp_path: Path
) -> Iterator[Watcher]:
    """A watcher that gives up a request early, in a thread of this process."""
    clock = SystemClock()
    ids = SystemIds(clock)
    with (
        contextlib.closing(open_catalog(restartable_postgres.url, clock, ids, limits=LIMITS)) as catalog,
        contextlib.closing(open_store(restartable_s3.config, clock, ids, probe_timeout_seconds=60)) as store,
    ):
        verify_binding(store, catalog.store_binding, ids)
        context = AppContext(
            catalog=catalog, store=store, store_config=restartable_s3.config, clock=catalog.clock, ids=ids
        )
        yield Watcher(
            context,
            load_settings({"data_dir": tmp_path, "max_ingestion_age_ms": 0}),
            CompactionOptions(),
            interval_seconds=0.05,
            session=InProcessSession(1),
        )


def test_a_watcher_survives_outages_and_logs_their_begin_and_end(
    watcher: Watcher, restartable_postgres: RestartablePostgres, restartable_s3: RestartableS3
) -> None:
    """The catalog is away while it polls, and the store is away while it runs a job."""
    stop = Interrupts()
    status = watcher.status
    claimed, store_is_away = threading.Event(), threading.Event()

    def wait_for_outage(_job: Job) -> None:
        claimed.set()
        store_is_away.wait(TIMEOUT_SECONDS)

    session = watcher._session
    assert isinstance(session, InProcessSession)
    session.before = wait_for_outage
    with capture_logs() as log:
        running = threading.Thread(target=watcher.run, args=(stop,))
        running.start()
        try:
            until(lambda: status.polls > 0)
            restartable_postgres.stop()
            until(lambda: status.polls_failed >= 2)
            assert status.outage_seconds > 0
            restartable_postgres.start()
            until(lambda: status.outage_seconds == 0)

            ingest_a_file(watcher)
            until(claimed.is_set)
            restartable_s3.stop()
            store_is_away.set()
            failed = status.polls_failed
            until(lambda: status.polls_failed > failed)
            restartable_s3.start()
            until(lambda: status.run.compaction.jobs_completed == 1 and status.outage_seconds == 0)
        finally:
            stop.requested.set()
            running.join(TIMEOUT_SECONDS)
    events = [line["event"] for line in log if "outage" in line["event"]]
    assert events == ["outage: compaction", "outage ended: compaction"] * 2
    assert all(line["seconds"] > 0 for line in log if line["event"] == "outage ended: compaction")


def ingest_a_file(watcher: Watcher) -> None:
    """Commit two records of a compacted topic."""
    context = watcher._context
    log = CatalogLog(context.catalog, context.store, context.ids)
    partition = PartitionId(log.create_topic("flights", "compact").topic_id, 0)
    log.ingest({partition: [batch((b"k", b"old"), (b"k", b"new"))]})


def test_processes_wait_at_their_start_for_the_catalog_and_the_store(
    restartable_postgres: RestartablePostgres, restartable_s3: RestartableS3, tmp_path: Path
) -> None:
    """They say what they wait for. After the timeout they exit with the reason."""
    config = restartable_s3.config
    where = ["--catalog", as_url(restartable_postgres.url), "--object-store", config.url]
    where += ["--s3-endpoint", str(config.endpoint), "--data-dir", str(tmp_path / "data")]
    agent = ["agent", "--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0", *where]
    watcher = ["compact", "--watch", "--interval", "0.1", "--metrics", "127.0.0.1:0", *where]
    maintenance = ["maintain", "--watch", *where]
    commands = (agent, watcher, maintenance)

    with contextlib.ExitStack() as stack:
        restartable_s3.stop()
        restartable_postgres.stop()
        impatient = [
            stack.enter_context(started(tmp_path / f"impatient-{arguments[0]}", arguments, wait_seconds=1))
            for arguments in commands
        ]
        patient = [
            stack.enter_context(started(tmp_path / arguments[0], arguments, wait_seconds=600))
            for arguments in commands
        ]
        for each in impatient:
            each.ends(75)
            assert "not available within start_timeout_seconds=1 of the start" in each.text()
        for step, server in (
            ("checking the object store", restartable_s3),
            ("opening the catalog", restartable_postgres),
        ):
            for each in patient:
                until(lambda each=each, step=step: f"outage: {step}" in each.text())  # type: ignore[misc]
            server.start()
        until(lambda: '"ready"' in patient[0].text())
        until(lambda: "Polling every 0.1 s" in patient[1].text())
        until(lambda: "Maintaining the log" in patient[2].text())
        for each in patient:
            each.stop()


@contextlib.contextmanager
def started(directory: Path, arguments: list[str], *, wait_seconds: int) -> Iterator[ForkedCommand]:
    """Start a command, and kill it at the end. The files of its output are in a new directory."""
    directory.mkdir()
    variables = {"SILTSTONE_START_TIMEOUT_SECONDS": str(wait_seconds)}
    command = ForkedCommand(arguments, directory / "output", directory / "error", variables=variables)
    try:
        yield command
    finally:
        command.kill()
