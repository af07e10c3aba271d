"""A file that makes every job fail is found by bisection and quarantined; all others are compacted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest
from click.testing import CliRunner

from catalog.jobs.repository import MAX_DEATHS
from catalog.model import FileKind, JobState, PartitionId
from core.errors import CorruptDataError
from maintenance.fsck import DifferenceKind, fsck
from object_store.accounting import Purpose
from planner.planner import plan, plan_and_submit
from planner.settings import PlannerSettings
from siltstone.cli.main import cli
from tests.end_to_end.processes import as_url

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from catalog.model import Topic
    from tests.planner.system import System

pytestmark = pytest.mark.integration

LIMITS = PlannerSettings(force=True)
DAMAGED: set[str] = set()
"""Names of the objects that a test has damaged."""


@pytest.fixture(autouse=True)
def _nothing_is_damaged() -> None:
    DAMAGED.clear()


def corrupt(system: System, name: str) -> None:
    """Change bytes of an object."""
    path = system.path_of(name)
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    DAMAGED.add(name)


def is_damaged(name: str) -> bool:
    return name in DAMAGED


def produce(system: System, topic: Topic, count: int) -> list[str]:
    key = PartitionId(topic.topic_id, 0)
    return [system.produce({key: [(b"a", b"%d" % number)]}).object_name for number in range(count)]


def compact(system: System) -> tuple[int, int]:
    """Plan and run until no job is planned; return the numbers of completed and failed jobs.

    The store has a file's content under its name, so the first damaged input of a job is the proof.
    """
    ended = failed = 0
    while plan_and_submit(system.catalog, system.clock, system.ids, LIMITS).jobs:
        for job in system.catalog.jobs.claim("a test", 100):
            assert job.attempt_id is not None
            try:
                result = system.write_outputs(job)
            except CorruptDataError as error:
                suspects = [each.file_id for each in job.spec.inputs if is_damaged(each.object_name)]
                assert suspects
                system.catalog.jobs.fail(
                    job.spec.job_id, job.attempt_id, error.message, suspects=suspects[:1]
                )
                failed += 1
            else:
                system.catalog.jobs.complete(result)
                ended += 1
    return ended, failed


def live(system: System, kind: FileKind) -> set[str]:
    files = system.catalog.garbage.known_files("")
    return {file.object_name for file in files if file.kind is kind and file.dead_ms is None}


def quarantined(system: System) -> set[str]:
    return {each.object_name for each in system.catalog.quarantine.list(quarantined=True)}


@pytest.mark.parametrize("bad", [{0}, {11}, {3, 8}], ids=str)
def test_corrupt_files_are_quarantined_and_all_others_compacted(system: System, bad: Collection[int]) -> None:
    """A file is quarantined after a second failure without other files; no object is deleted."""
    names = produce(system, system.topic("plain"), 12)
    for number in bad:
        corrupt(system, names[number])
    _, failed = compact(system)
    assert failed == 2 * len(bad)
    expected = {names[number] for number in bad}
    assert quarantined(system) == live(system, FileKind.INGESTION) == expected
    objects = {info.name for info in system.store.list("", purpose=Purpose.GC)}
    assert expected <= objects
    assert plan(system.catalog, system.clock, LIMITS).jobs == ()


def test_new_records_are_compacted_after_a_quarantined_file(system: System) -> None:
    """Only the quarantined file stays an ingestion file."""
    topic = system.topic("keyed", cleanup_policy="compact")
    names = produce(system, topic, 3)
    corrupt(system, names[1])
    compact(system)
    produce(system, topic, 4)
    assert compact(system)[1] == 0
    assert live(system, FileKind.INGESTION) == {names[1]}
    extents = system.catalog.planning.extents_of(PartitionId(topic.topic_id, 0), 0, 100)
    assert [each.file_kind for each in extents].count(FileKind.INGESTION) == 1


def test_a_corrupt_compacted_file_is_quarantined(system: System) -> None:
    """Ingestion files of the same topic are still compacted."""
    topic = system.topic("keyed", cleanup_policy="compact")
    produce(system, topic, 2)
    compact(system)
    (name,) = live(system, FileKind.COMPACTED)
    corrupt(system, name)
    produce(system, topic, 2)
    compact(system)
    assert quarantined(system) == {name}
    assert live(system, FileKind.INGESTION) == set()
    assert plan(system.catalog, system.clock, LIMITS).jobs == ()


def test_a_released_file_is_retried(
    system: System, catalog_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fsck and plan report the quarantined file; after its repair and release, a job takes it."""
    monkeypatch.setattr("siltstone.cli.options.configure_logs", lambda _: None)
    names = produce(system, system.topic("plain"), 3)
    sound = system.path_of(names[1]).read_bytes()
    corrupt(system, names[1])
    compact(system)
    found = fsck(system.catalog, system.store, system.clock).differences
    assert [(each.kind, each.object_name) for each in found] == [(DifferenceKind.QUARANTINED, names[1])]
    (decision,) = plan(system.catalog, system.clock, LIMITS, explain="plain").explain("plain")
    assert "quarantine" in decision.reason
    system.path_of(names[1]).write_bytes(sound)
    DAMAGED.discard(names[1])
    where = ["--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url), "--json"]
    planned = orjson.loads(CliRunner().invoke(cli, ["plan", *where]).stdout)
    (each,) = planned["quarantined"]
    assert (each["object"], planned["candidates"]) == (names[1], [])
    slip = CliRunner().invoke(cli, ["quarantine", "--retry", each["job_id"], *where])
    assert (slip.exit_code, f"not in quarantine: {each['job_id']}" in slip.stderr) == (1, True)
    result = CliRunner().invoke(cli, ["quarantine", "--retry", each["file_id"], *where])
    report = orjson.loads(result.stdout)
    assert (report["retried"], report["quarantined"], report["candidates"]) == (1, [], [])
    assert (report["resumed"], report["pause"]) == (False, None)
    assert compact(system) == (1, 0)
    assert live(system, FileKind.INGESTION) == set()
    assert fsck(system.catalog, system.store, system.clock).differences == ()


@pytest.mark.parametrize("deadly", [0, 5])
def test_a_file_that_kills_workers_is_isolated_by_bisection(system: System, deadly: int) -> None:
    """All other files are compacted, although every job with the deadly file fails."""
    names = produce(system, system.topic("plain"), 8)
    while plan_and_submit(system.catalog, system.clock, system.ids, LIMITS).jobs:
        while jobs := system.catalog.jobs.claim("a test", 100):
            for job in jobs:
                assert job.attempt_id is not None
                if names[deadly] in {each.object_name for each in job.spec.inputs}:
                    system.catalog.jobs.back_off(
                        job.spec.job_id, job.attempt_id, error="WorkerDiedError", reason="killed", died=True
                    )
                else:
                    system.catalog.jobs.complete(system.write_outputs(job))
            system.clock.advance(3600)

    assert quarantined(system) == live(system, FileKind.INGESTION) == {names[deadly]}


@pytest.mark.parametrize("files", [2, 8])
def test_an_outage_quarantines_no_file_of_the_only_job(system: System, files: int) -> None:
    """Every worker dies for two days. The jobs with parts of the files cause a pause."""
    produce(system, system.topic("plain"), files)
    for _ in range(48):
        plan_and_submit(system.catalog, system.clock, system.ids, LIMITS)
        for job in system.catalog.jobs.claim("a test", 100):
            assert job.attempt_id is not None
            system.catalog.jobs.back_off(
                job.spec.job_id, job.attempt_id, error="WorkerDiedError", reason="killed", died=True
            )
        system.clock.advance(3600)
    assert quarantined(system) == set()
    assert system.catalog.circuit_breaker.pause() is not None

    for _ in range(4):
        plan_and_submit(system.catalog, system.clock, system.ids, LIMITS)
        for job in system.catalog.jobs.claim("a test", 100):
            system.catalog.jobs.complete(system.write_outputs(job))
        system.clock.advance(3600)
    assert live(system, FileKind.INGESTION) == set()


def test_a_file_that_kills_every_worker_is_quarantined(system: System) -> None:
    """The attempts end without heartbeats."""
    names = produce(system, system.topic("plain"), 1)
    assert plan_and_submit(system.catalog, system.clock, system.ids, LIMITS).jobs
    for _ in range(MAX_DEATHS):
        system.catalog.jobs.claim("a worker that dies", 1)
        system.clock.advance(61)
        system.catalog.jobs.release_expired(60_000, 0)
    (job,) = system.catalog.jobs.list([JobState.FAILED])
    assert "stopped sending heartbeats" in (job.failure or "")
    assert quarantined(system) == set(names)
