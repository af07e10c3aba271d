"""`siltstone fsck --restored`: which sessions and jobs it removes, and when it fails instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest
from click.testing import CliRunner

from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SeededIds
from siltstone.cli.main import cli
from tests.catalog.scene import Scene, run_of
from tests.end_to_end.processes import as_url

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from catalog.open import Catalog
    from core.ids import Ids


@pytest.fixture
def where(tmp_path: Path, catalog_url: str) -> list[str]:
    """Options with which the command finds the catalog."""
    return ["--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url)]


def fsck(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["fsck", *arguments])


def test_sessions_and_jobs_without_heartbeats_are_removed_and_counted(
    catalog: Catalog, ids: Ids, where: list[str]
) -> None:
    """The heartbeats of a session and a job are years old; a second call removes nothing."""
    scene = Scene.set_up(catalog, ids)
    topic = scene.topic()
    scene.commit(topic, run_of(3))
    scene.claimed(scene.extents(topic))
    results = [orjson.loads(fsck("--restored", "--json", *where).stdout) for _ in range(2)]
    assert [result["removed_writers"] for result in results] == [
        {"sessions": 1, "jobs": 1},
        {"sessions": 0, "jobs": 0},
    ]
    assert catalog.sessions.active() == []
    assert orjson.loads(fsck("--json", *where).stdout)["removed_writers"] is None


def test_nothing_is_removed_while_an_agent_or_a_driver_sends_heartbeats(
    catalog_url: str, where: list[str]
) -> None:
    """With --force they are removed; --force needs --restored."""
    clock = SystemClock()
    with open_catalog(catalog_url, clock, SeededIds(1, clock)) as catalog:
        scene = Scene.set_up(catalog, SeededIds(2, clock))
        topic = scene.topic()
        scene.commit(topic, run_of(3))
        scene.claimed(scene.extents(topic))
        rejected = fsck("--restored", *where)
        assert rejected.exit_code != 0
        assert "1 agent and 1 running job" in " ".join(rejected.stderr.split())
        catalog.sessions.end(scene.session_id)
        assert fsck("--restored", *where).exit_code != 0, "the driver is at work"
        scene = Scene.set_up(catalog, SeededIds(3, clock))
        assert "--restored" in fsck("--force", *where).stderr
        assert len(catalog.sessions.active()) == 1
        assert (
            "Removed 1 session and 1 unfinished job of the backup."
            in fsck("--restored", "--force", *where).stdout
        )
        assert catalog.sessions.active() == []
