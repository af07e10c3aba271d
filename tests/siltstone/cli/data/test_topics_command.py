"""`siltstone topics` on a real catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from click.testing import CliRunner

from core.quantities import human_duration
from local_tier.files.metadata_files import uuid_text
from siltstone.cli.main import cli
from tests.catalog.scene import Scene, run_of
from tests.end_to_end.processes import as_url

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from uuid import UUID

    from catalog.open import Catalog
    from core.ids import Ids


@pytest.mark.parametrize("mode", ["object", "local"])
def test_a_deleted_topic_is_listed_and_undeleted(
    tmp_path: Path, catalog: Catalog, catalog_url: str, ids: Ids, mode: str
) -> None:
    where = ["--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url)]

    def topics(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(cli, ["topics", *arguments, *where])
        assert result.exit_code == code, result.output
        return result.output if code else result.stdout

    def report(*arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(topics(*arguments, "--json").splitlines()[-1])
        return found

    scene = Scene.set_up(catalog, ids)
    topic = scene.topic("flights", storage_mode=mode)
    if mode == "object":
        scene.commit(topic, run_of(3))
    assert report("list", "--deleted") == {"deleted_topics": []}
    assert "no deleted topic" in topics("list", "--deleted")
    assert "siltstone topics undelete flights" in topics("delete", "flights", "--yes")
    assert report("list")["topics"] == []
    (deleted,) = report("list", "--deleted")["deleted_topics"]
    assert (deleted["name"], deleted["topic_id"]) == ("flights", str(topic.topic_id))
    assert 0 < deleted["seconds_left"] <= 86_400
    assert "flights" in topics("list", "--deleted")

    topics("create", "flights")
    assert "--as NEWNAME" in topics("undelete", "flights", code=1)
    for _ in range(2):  # the first response may be lost
        found = report("undelete", "flights", "--id", str(topic.topic_id), "--as", "old-flights")
        assert (found["name"], found["topic_id"]) == ("old-flights", str(topic.topic_id))
    assert len(scene.extents(topic)) == (mode == "object")
    assert "list --deleted" in topics("undelete", "flights", code=1)
    topics("delete", "old-flights", "--yes")
    assert topics("undelete", "old-flights").strip() == "undeleted old-flights"


@pytest.mark.parametrize("write", [str, uuid_text])
def test_a_lost_topic_is_created_with_its_identifier(
    tmp_path: Path, catalog: Catalog, catalog_url: str, ids: Ids, write: Callable[[UUID], str]
) -> None:
    """The form of Kafka is that of partition.metadata in the directory of a log."""
    where = ["--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url)]
    Scene.set_up(catalog, ids)
    topic_id = ids.new_uuid()
    create = ["topics", "create", "flights", "--id", write(topic_id), *where]
    assert CliRunner().invoke(cli, create).exit_code == 0
    assert catalog.topics.get("flights").topic_id == topic_id
    for _ in range(2):
        again = CliRunner().invoke(cli, create)
        assert (again.exit_code, f"identifier {topic_id} exists" in again.stderr) == (1, True)
        CliRunner().invoke(cli, ["topics", "delete", "flights", "--yes", *where])


def test_partitions_are_added_to_a_topic(
    tmp_path: Path, catalog: Catalog, catalog_url: str, ids: Ids
) -> None:
    where = ["--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url)]
    Scene.set_up(catalog, ids).topic("flights")
    add = ["topics", "add-partitions", "flights", *where]
    done = CliRunner().invoke(cli, [*add, "--partitions", "3"])
    assert (done.exit_code, done.stdout) == (0, "flights has 3 partitions\n")
    again = CliRunner().invoke(cli, [*add, "--partitions", "3"])
    assert (again.exit_code, "can only increase" in again.stderr) == (1, True)
    found = orjson.loads(CliRunner().invoke(cli, [*add, "--partitions", "4", "--json"]).stdout)
    assert found["partitions"] == catalog.topics.get("flights").partition_count == 4


def test_durations_have_two_units() -> None:
    assert [human_duration(each) for each in (0, 59, 60, 3_600, 90_061, 7 * 86_400)] == [
        "0 s",
        "59 s",
        "1 min 0 s",
        "1 h 0 min",
        "1 d 1 h",
        "7 d 0 h",
    ]
