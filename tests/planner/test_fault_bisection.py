"""A file that spoils every job it is in: found by halves, set aside, and everything else is compacted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest
from click.testing import CliRunner

from catalog.jobs.repository import MAX_ATTEMPTS
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


def spoil(system: System, name: str) -> None:
    """Let the last bytes of an object, where its sections are, be other ones."""
    path = system.path_of(name)
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def produced(system: System, topic: Topic, count: int) -> list[str]:
    key = PartitionId(topic.topic_id, 0)
    return [system.produce({key: [(b"a", b"%d" % number)]}).object_name for number in range(count)]


def compact(system: System, *, permanent: bool = True) -> tuple[int, int]:
    """Plan and run until nothing is left to do; how many jobs ended well, and how many failed."""
    ended = failed = 0
    while plan_and_submit(system.catalog, system.clock, system.ids, LIMITS).jobs:
        for job in system.catalog.jobs.claim("a test", 100):
            assert job.attempt_id is not None
            try:
                result = system.write_outputs(job)
            except CorruptDataError as error:
                system.catalog.jobs.fail(job.spec.job_id, job.attempt_id, error.message, permanent=permanent)
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
def test_the_bad_files_are_set_aside_and_all_others_compacted(system: System, bad: Collection[int]) -> None:
    """Each takes a failure per halving; afterwards a plan comes to its end, and nothing was deleted."""
    names = produced(system, system.topic("plain"), 12)
    for number in bad:
        spoil(system, names[number])
    _, failed = compact(system)
    assert failed <= 1 + 4 * len(bad)
    expected = {names[number] for number in bad}
    assert quarantined(system) == live(system, FileKind.INGESTION) == expected
    there = {info.name for info in system.store.list("", purpose=Purpose.GC)}
    assert expected <= there
    assert plan(system.catalog, system.clock, LIMITS).jobs == ()


def test_news_are_compacted_behind_a_file_in_quarantine(system: System) -> None:
    topic = system.topic("keyed", cleanup_policy="compact")
    names = produced(system, topic, 3)
    spoil(system, names[1])
    compact(system)
    produced(system, topic, 4)
    assert compact(system)[1] == 0
    assert live(system, FileKind.INGESTION) == {names[1]}
    extents = system.catalog.planning.extents_of(PartitionId(topic.topic_id, 0), 0, 100)
    assert [each.file_kind for each in extents].count(FileKind.INGESTION) == 1


def test_a_compacted_file_that_went_bad_is_set_aside_too(system: System) -> None:
    topic = system.topic("keyed", cleanup_policy="compact")
    produced(system, topic, 2)
    compact(system)
    (name,) = live(system, FileKind.COMPACTED)
    spoil(system, name)
    produced(system, topic, 2)
    compact(system)
    assert quarantined(system) == {name}
    assert live(system, FileKind.INGESTION) == set()
    assert plan(system.catalog, system.clock, LIMITS).jobs == ()


def test_who_is_forgiven_is_tried_again(
    system: System, catalog_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fsck and plan tell of a file in quarantine; once it was mended and forgiven, a job takes it."""
    monkeypatch.setattr("siltstone.cli.options.configure_logs", lambda _: None)
    names = produced(system, system.topic("plain"), 3)
    sound = system.path_of(names[1]).read_bytes()
    spoil(system, names[1])
    compact(system)
    found = fsck(system.catalog, system.store, system.clock).differences
    assert [(each.kind, each.object_name) for each in found] == [(DifferenceKind.QUARANTINED, names[1])]
    (decision,) = plan(system.catalog, system.clock, LIMITS, explain="plain").explain("plain")
    assert "quarantine" in decision.reason
    system.path_of(names[1]).write_bytes(sound)
    where = ["--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url), "--json"]
    planned = orjson.loads(CliRunner().invoke(cli, ["plan", *where]).stdout)
    (each,) = planned["quarantined"]
    assert (each["object"], planned["candidates"]) == (names[1], [])
    answer = CliRunner().invoke(cli, ["quarantine", "--retry", each["file_id"], *where])
    assert orjson.loads(answer.stdout) == {"retried": 1, "quarantined": [], "candidates": []}
    assert compact(system) == (1, 0)
    assert live(system, FileKind.INGESTION) == set()
    assert fsck(system.catalog, system.store, system.clock).differences == ()


def test_a_failure_that_may_pass_is_waited_for(system: System) -> None:
    """With growing pauses; only who fails alone for hours is quarantined."""
    names = produced(system, system.topic("plain"), 1)
    spoil(system, names[0])
    pauses = []
    while not quarantined(system):
        assert compact(system, permanent=False) == (0, 1)
        (candidate,) = system.catalog.quarantine.list()
        pauses.append((candidate.not_before_ms - system.clock.now_ms()) // 60_000)
        system.clock.advance(candidate.not_before_ms / 1000 - system.clock.now_ms() / 1000 - 1)
        assert plan(system.catalog, system.clock, LIMITS).jobs == ()
        system.clock.advance(2)
    assert pauses == [1, 2, 4, 8, 16, 32, *[60] * 6]


def test_who_silences_every_worker_is_suspected(system: System) -> None:
    """A file whose records kill the workers ends like one that cannot be read."""
    names = produced(system, system.topic("plain"), 1)
    assert plan_and_submit(system.catalog, system.clock, system.ids, LIMITS).jobs
    for _ in range(MAX_ATTEMPTS):
        system.catalog.jobs.claim("a worker that dies", 1)
        system.clock.advance(61)
        system.catalog.jobs.release_expired(60_000)
    (job,) = system.catalog.jobs.list([JobState.FAILED])
    assert "stopped sending heartbeats" in (job.failure or "")
    assert quarantined(system) == set(names)
