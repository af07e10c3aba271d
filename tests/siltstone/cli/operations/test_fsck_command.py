"""`siltstone fsck --restored` and `--readopt`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import pytest
from click.testing import CliRunner

from agent.settings import AgentSettings
from catalog.lifecycle.lost_commits import AcknowledgedCommit
from catalog.lifecycle.missing_topics import MissingTopic
from catalog.model import OffsetRange, PartitionId
from maintenance.readopt.report import Outcome, ReadoptedFile, ReadoptReport
from object_store.names import ingestion_name
from siltstone.cli.main import cli
from siltstone.cli.operations import readoption
from tests.catalog.scene import Scene, run_of
from tests.end_to_end.processes import as_url

if TYPE_CHECKING:
    from collections.abc import Callable
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


def report_of(result: Result) -> dict[str, Any]:
    """Return the JSON of a report; log lines may precede it here."""
    report: dict[str, Any] = orjson.loads(result.stdout[result.stdout.index("{") :])
    return report


def test_a_declared_restore_begins_an_epoch(catalog: Catalog, ids: Ids, where: list[str]) -> None:
    """Sessions are fenced, open jobs are removed, and later runs begin no further epoch."""
    scene = Scene.set_up(catalog, ids)
    topic = scene.topic()
    scene.commit(topic, run_of(3))
    scene.claimed(scene.extents(topic))
    epoch = report_of(fsck("--restored", "--json", *where))["epoch"]
    assert epoch == catalog.incarnations.current().epoch > 0
    assert catalog.sessions.active() == []
    assert sum(catalog.jobs.counts().values()) == 0
    assert report_of(fsck("--json", *where))["epoch"] is None
    printed = fsck("--restored", *where).stdout
    assert f"Epoch {catalog.incarnations.current().epoch} begins." in printed
    assert catalog.incarnations.current().epoch > epoch
    assert [each.session_id for each in catalog.lost_commits.unsettled_sessions()] == [scene.session_id]


def test_readoption_lists_lost_files_and_applies_on_request(
    catalog: Catalog, ids: Ids, where: list[str]
) -> None:
    """The object of the only lost commit is missing here. Its options need --readopt."""
    scene = Scene.set_up(catalog, ids)
    commit = scene.file({PartitionId(scene.topic().topic_id, 0): [run_of(3)]})
    commit = replace(commit, object_name=ingestion_name(commit.session_id, commit.file_id))
    catalog.incarnations.declare_restore("a test")
    lost = AcknowledgedCommit(
        file_id=commit.file_id,
        session_id=scene.session_id,
        object_name=commit.object_name,
        number=1,
        committed_ms=0,
        offsets=[OffsetRange(str(commit.sections[0].topic_id), 0, 5, 8)],
    )
    catalog.lost_commits.report([scene.session_id], [lost], catalog.incarnations.current().epoch)
    shown = fsck("--readopt", *where)
    assert "1 of 1 lost file\n" in shown.stdout
    assert commit.object_name in shown.stdout.splitlines()
    assert "t-0: 5 to 7" in shown.stdout
    assert "1 lost file with 0 records; 1 of the files is known to be acknowledged" in shown.stdout
    assert "No file was committed." in shown.stdout
    printed = fsck("--readopt", "--apply", *where).stdout
    assert "Settled 0 sessions." in printed
    assert "1 acknowledged file cannot be read." in printed
    assert commit.object_name in fsck("--readopt", *where).stdout.splitlines()
    done = report_of(fsck("--readopt", "--apply", "--json", *where))
    assert (done["counts"], done["kept"], done["settled_sessions"]) == ({"unreadable": 1}, 0, 1)
    assert done["files"][0]["old_offsets"] == [[str(lost.offsets[0].topic_id), 0, 5, 8]]
    assert "found no lost file to commit again" in fsck("--readopt", *where).stdout
    assert fsck("--apply", *where).exit_code == 2
    assert fsck("--readopt", "--deep", *where).exit_code == 2


def test_only_a_readoption_counts_rejected_records(
    catalog: Catalog, ids: Ids, where: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run does not ask the log which records it would take."""
    Scene.set_up(catalog, ids)
    dry, applied = ReadoptReport(applied=False), ReadoptReport(applied=True)
    lost = ReadoptedFile(
        file_id=UUID(int=1),
        object_name="of an unknown topic",
        session_id=UUID(int=2),
        acknowledged=None,
        outcome=Outcome.WAITING,
        records=100,
    )
    dry.add(lost)
    applied.add(replace(lost, outcome=Outcome.READOPTED, rejected=90, duplicates=10))
    reports = iter([dry, applied])
    monkeypatch.setattr(readoption, "readopt", lambda *_arguments, **_options: next(reports))
    shown = fsck("--readopt", *where).stdout
    assert "waiting, acknowledged: unknown, 100 records\n" in shown
    assert "1 lost file with 100 records; 0 of the files are known to be acknowledged" in shown
    assert "already" not in shown
    done = fsck("--readopt", "--apply", *where).stdout
    assert "readopted, acknowledged: unknown, 100 records, 10 in the log already, 90 rejected\n" in done
    assert "1 lost file with 100 records; of these 10 are in the log already, and 90 are" in done


def test_a_dry_run_names_topics_that_the_catalog_does_not_know(
    catalog: Catalog, ids: Ids, where: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Scene.set_up(catalog, ids)
    missing = MissingTopic(topic_id=UUID(int=3), name=None, partition_count=4)
    report = ReadoptReport(applied=False)
    report.add(
        ReadoptedFile(
            file_id=UUID(int=1),
            object_name="of an unknown topic",
            session_id=UUID(int=2),
            acknowledged=None,
            outcome=Outcome.WAITING,
            records=100,
            missing_topics=(missing,),
        )
    )
    monkeypatch.setattr(readoption, "readopt", lambda *_arguments, **_options: report)
    dry_run = fsck("--readopt", *where)
    shown = dry_run.stdout
    assert dry_run.exit_code == 0
    command = f"siltstone topics create NAME --partitions 4 --id {UUID(int=3)}"
    on_disks = "partition.metadata in its directories on agents: AAAAAAAAAAAAAAAAAAAAAw"
    assert f"  {command}\n    {on_disks}\n" in shown
    assert "--apply leaves such files" in shown
    printed = report_of(fsck("--readopt", "--json", *where))
    fields = {"topic_id": str(UUID(int=3)), "name": None, "partitions": 4}
    assert printed["files"][0]["missing_topics"] == [fields]
    assert printed["missing_topics"] == [{**fields, "command": command}]
    report.applied = True
    run = fsck("--readopt", "--apply", *where)
    applied = run.stdout
    assert run.exit_code == 1, "a file is left"
    assert "Left 1 file, because the catalog lacks topics or partitions." in applied
    assert f"  {command}\n" in applied
    assert "--discard-unknown-topics" in applied


def test_records_of_unknown_topics_are_discarded_only_on_request(
    catalog: Catalog, ids: Ids, where: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Scene.set_up(catalog, ids)
    requests: list[bool] = []

    def note(*_: object, discard_unknown_topics: bool, **_options: object) -> ReadoptReport:
        requests.append(discard_unknown_topics)
        return ReadoptReport(applied=True)

    monkeypatch.setattr(readoption, "readopt", note)
    for options in ([], ["--discard-unknown-topics"]):
        assert fsck("--readopt", "--apply", *options, *where).exit_code == 0
    assert requests == [False, True]
    assert fsck("--readopt", "--discard-unknown-topics", *where).exit_code == 2


def test_only_a_readoption_waits_for_agents(
    catalog: Catalog, ids: Ids, where: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run commits nothing. A number of agents is announced once."""
    Scene.set_up(catalog, ids)
    silences: list[int] = []

    def wait(_catalog: object, _clock: object, silent_ms: int, note: Callable[[int], None]) -> None:
        silences.append(silent_ms)
        for agents in (2, 2, 1):
            note(agents)

    monkeypatch.setattr(readoption, "wait_for_agents", wait)
    fsck("--readopt", *where)
    assert silences == []
    waited = fsck("--readopt", "--apply", *where)
    assert silences == [AgentSettings().broker_silent_ms]
    announced = [line for line in waited.stderr.splitlines() if line.startswith("Waiting")]
    assert announced == [
        f"Waiting at most 30 s for {who} to report lost commits." for who in ("2 agents", "1 agent")
    ]
