"""`siltstone maintain` on a real catalog."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import orjson
import psycopg
from click.testing import CliRunner

from maintenance.settings import MaintenanceSettings
from maintenance.tasks import maintenance_tasks
from object_store.local.store import LocalStore
from siltstone.cli.main import cli
from tests.catalog.scene import Scene, run_of
from tests.end_to_end.processes import TIMEOUT_SECONDS, agent, as_url, environment
from tests.siltstone.compaction.test_watcher import until

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.open import Catalog
    from core.ids import Ids


def test_expired_records_and_garbage_are_deleted_and_counted(
    tmp_path: Path, catalog: Catalog, catalog_url: str, ids: Ids
) -> None:
    """A second call has nothing left to do."""
    scene = Scene.set_up(catalog, ids)
    old, kept = scene.topic("old", retention_ms="1000"), scene.topic("kept", retention_ms="-1")
    for topic in (old, kept):
        scene.commit(topic, run_of(3))
    where = ["--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url)]
    reports = []
    for _ in range(2):
        result = CliRunner().invoke(cli, ["maintain", "--json", *where])
        assert result.exit_code == 0, result.output
        reports.append(orjson.loads(result.stdout))
    assert [report["expired_extents"] for report in reports] == [1, 0]
    assert (scene.extents(old), len(scene.extents(kept))) == ([], 1)
    people = CliRunner().invoke(cli, ["maintain", "--once", *where])
    assert people.stdout.startswith("Expired 0 extents (0 B)")


def _holders(catalog_url: str) -> dict[str, object]:
    with psycopg.connect(catalog_url) as connection:
        return dict(connection.execute("SELECT name, holder_id FROM siltstone.periodic_tasks").fetchall())


def test_an_agent_removes_expired_records_by_itself_and_releases_its_leases(
    tmp_path: Path, catalog: Catalog, catalog_url: str, ids: Ids
) -> None:
    scene = Scene.set_up(catalog, ids)
    old = scene.topic("old", retention_ms="1000")
    scene.commit(old, run_of(3))
    store = LocalStore(tmp_path / "unused", ids)
    tasks = {each.name for each in maintenance_tasks(catalog, store, MaintenanceSettings())}
    with agent(tmp_path / "data", "--catalog", as_url(catalog_url)) as (process, _):
        until(lambda: scene.extents(old) == [])
        until(lambda: _holders(catalog_url).keys() == tasks)
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
    assert _holders(catalog_url) == dict.fromkeys(tasks)


def test_maintenance_runs_until_a_signal_and_reports_what_it_removed(
    tmp_path: Path, catalog: Catalog, catalog_url: str, ids: Ids
) -> None:
    scene = Scene.set_up(catalog, ids)
    old = scene.topic("old", retention_ms="1000")
    scene.commit(old, run_of(3))
    (tmp_path / "data").mkdir()
    command = [sys.executable, "-m", "siltstone", "maintain", "--watch", "--json"]
    where = ["--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url)]
    with subprocess.Popen(
        [*command, *where], stdout=subprocess.PIPE, env=environment(), text=True
    ) as process:
        until(lambda: scene.extents(old) == [])
        process.terminate()
        out, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0
    assert orjson.loads(out.splitlines()[-1])["expired_extents"] == 1
    assert set(_holders(catalog_url).values()) == {None}


def test_maintenance_ends_if_a_migration_excludes_it(tmp_path: Path, catalog_url: str) -> None:
    (tmp_path / "data").mkdir()
    command = [sys.executable, "-m", "siltstone", "maintain", "--watch"]
    where = ["--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url)]
    with subprocess.Popen(
        [*command, *where], stderr=subprocess.PIPE, env=environment(), text=True
    ) as process:
        until(lambda: None not in _holders(catalog_url).values() and bool(_holders(catalog_url)))
        with psycopg.connect(catalog_url, autocommit=True) as connection:
            connection.execute("UPDATE siltstone.schema_version SET version = 99, min_version = 98")
        _, problem = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 78
    assert "upgrade Siltstone" in problem
