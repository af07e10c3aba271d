"""Shared looks: one at a time, none for nothing, and no change that none of them sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from catalog.jobs.looks import LOOK_MS
from catalog.model import PartitionId
from core.clock import ManualClock
from tests.catalog.scene import advance_log_start, run_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from catalog.jobs.looks import Looks
    from core.clock import Clock
    from tests.catalog.scene import Scene

FAR = 10**15


def rest(looks: Looks) -> None:
    """Look, and find nothing to do for long."""
    look_id = looks.begin("s", looks.last("s"))
    assert look_id is not None
    looks.finish(look_id, FAR)
    assert not looks.last("s").is_due


def _quarantine(scene: Scene) -> None:
    (file,) = scene.catalog.planning.ingestion_files(1).files
    job = scene.claimed(file.extents)
    assert job.attempt_id is not None
    rest(scene.catalog.looks)
    scene.catalog.jobs.fail(job.spec.job_id, job.attempt_id, "corrupt", suspects=[file.file_id])


def _complete(scene: Scene) -> None:
    (file,) = scene.catalog.planning.ingestion_files(1).files
    job = scene.claimed(file.extents)
    rest(scene.catalog.looks)
    scene.catalog.jobs.complete(scene.result(job))


def _claim(scene: Scene) -> None:
    (file,) = scene.catalog.planning.ingestion_files(1).files
    assert scene.submitted(file.extents).inputs[0].is_whole


def _cancel(scene: Scene) -> None:
    (file,) = scene.catalog.planning.ingestion_files(1).files
    spec = scene.submitted(file.extents)
    rest(scene.catalog.looks)
    scene.catalog.jobs.cancel(spec.job_id, "an operator")


def _expire(scene: Scene) -> None:
    topic = scene.catalog.topics.get("t")
    advance_log_start(scene.catalog.retention, topic.topic_id, 0, 2)
    rest(scene.catalog.looks)
    scene.catalog.retention.remove_expired(topic.topic_id, 0)


def _purge(scene: Scene) -> None:
    scene.catalog.topics.delete("t")
    rest(scene.catalog.looks)
    scene.remove_deleted_topics()


CHANGES: dict[str, Callable[[Scene], object]] = {
    "a file of a failed job": _quarantine,
    "a publication": _complete,
    "a claimed file": _claim,
    "a cancelled job": _cancel,
    "retention": _expire,
    "deleted records": lambda scene: advance_log_start(
        scene.catalog.retention, scene.catalog.topics.get("t").topic_id, 0, 1
    ),
    "settings of a topic": lambda scene: scene.catalog.topics.alter_config("t", {"cleanup.policy": "delete"}),
    "a deleted topic": lambda scene: scene.catalog.topics.delete("t"),
    "a purged topic": _purge,
    "a repaired partition": lambda scene: scene.catalog.repair.recount_partition(
        PartitionId(scene.catalog.topics.get("t").topic_id, 0)
    ),
    "a repaired file": lambda scene: scene.catalog.repair.recount_file(
        scene.catalog.planning.ingestion_files(1).files[0].file_id
    ),
}


@pytest.fixture
def looks(scene: Scene) -> Looks:
    """The looks of a catalog with a topic and a file of four records."""
    scene.commit(scene.topic("t", 2, **{"cleanup.policy": "compact"}), run_of(4))
    return scene.catalog.looks


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_change_except_a_commit_makes_a_look_due(
    scene: Scene, looks: Looks, change: Callable[[Scene], object]
) -> None:
    rest(looks)
    scene.commit(scene.catalog.topics.get("t"), run_of(2))
    scene.topic("other")
    assert not looks.last("s").is_due
    change(scene)
    assert looks.last("s").is_due
    rest(looks)


def test_many_changes_leave_one_note(scene: Scene, looks: Looks, catalog_url: str) -> None:
    """So the notes do not accumulate while no planner runs."""
    for number in range(20):
        scene.catalog.topics.alter_config("t", {"retention.ms": str(number)})
    with psycopg.connect(catalog_url) as connection:
        assert connection.execute("SELECT count(*) FROM planning_changes").fetchall() == [(1,)]
    rest(looks)


@pytest.mark.parametrize("has_note", [False, True])
def test_a_change_that_is_committed_during_a_look_makes_the_next_one_due(
    looks: Looks, catalog_url: str, *, has_note: bool
) -> None:
    """Its transaction began before the look, which cannot see it. An older note may have stood for it."""
    change = "UPDATE topics SET config = '{}'"
    if not has_note:
        rest(looks)
    with psycopg.connect(catalog_url) as connection:
        if has_note:
            connection.execute(change)
            connection.commit()
        connection.execute(change)
        look_id = looks.begin("s", looks.last("s"))
        assert look_id is not None
        connection.commit()
        looks.finish(look_id, FAR)
    assert looks.last("s").is_due
    rest(looks)


def test_a_note_of_a_change_that_is_rolled_back_goes_with_it(looks: Looks, catalog_url: str) -> None:
    rest(looks)
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE topics SET config = '{}'")
        connection.rollback()
    assert not looks.last("s").is_due


def test_one_planner_looks_at_a_time(looks: Looks) -> None:
    last = looks.last("s")
    look_id = looks.begin("s", last)
    assert look_id is not None
    assert looks.last("s").is_running
    assert looks.begin("s", last) is None
    looks.finish(look_id, FAR)
    assert looks.begin("s", last) is None  # that look answers for this one, too
    assert not looks.last("s").is_running


def test_a_look_that_outlasts_its_lease_is_ignored(looks: Looks, clock: Clock) -> None:
    """Another planner has begun a look, which saw a later state."""
    assert isinstance(clock, ManualClock)
    frozen = looks.begin("s", looks.last("s"))
    assert frozen is not None
    clock.advance(LOOK_MS / 1000)
    last = looks.last("s")
    assert (last.is_running, last.is_due) == (False, True)
    second = looks.begin("s", last)
    assert second is not None
    looks.finish(frozen, FAR)
    assert looks.last("s").is_running
    looks.finish(second, last.now_ms + 1)
    clock.advance(0.001)
    assert looks.last("s").is_due


def test_a_look_is_due_with_other_settings_and_after_the_clock_stepped_back(
    looks: Looks, catalog_url: str
) -> None:
    rest(looks)
    assert looks.last("other settings").is_due
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE planning_look SET looked_ms = looked_ms + 3600000")
    assert looks.last("s").is_due


def test_the_first_look_is_due(looks: Looks) -> None:
    last = looks.last("s")
    found: tuple[UUID | None, bool, bool] = (last.look_id, last.is_running, last.is_due)
    assert found == (None, False, True)
