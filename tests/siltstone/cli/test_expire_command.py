"""`siltstone expire` on a real catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from click.testing import CliRunner

from siltstone.cli.main import cli
from tests.catalog.scene import Scene, run_of
from tests.end_to_end.processes import as_url

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
        result = CliRunner().invoke(cli, ["expire", "--json", *where])
        assert result.exit_code == 0, result.output
        reports.append(orjson.loads(result.stdout))
    assert [report["expired_extents"] for report in reports] == [1, 0]
    assert (scene.extents(old), len(scene.extents(kept))) == ([], 1)
    people = CliRunner().invoke(cli, ["expire", *where])
    assert people.stdout.startswith("Expired 0 extents (0 B)")
