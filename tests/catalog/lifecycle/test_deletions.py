"""Confirmations of deletions: what they confirm, and that each of them writes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest

from catalog.lifecycle.deletions import TopicAbsence
from catalog.lifecycle.expiry import OwnerKind
from catalog.lifecycle.lost_commits import AcknowledgedCommit
from catalog.model import PartitionId
from tests.catalog.scene import run_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tests.catalog.scene import Scene

_SESSION = OwnerKind.SESSION


def _confirmed_ms(url: str) -> int | None:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT confirmed_ms FROM siltstone.deletions").fetchall()
    return next((int(confirmed) for (confirmed,) in rows), None)


def test_only_dead_files_without_extents_are_confirmed(scene: Scene, catalog_url: str) -> None:
    """A wrong count of extents does not delete a live file."""
    catalog, clock = scene.catalog, scene.catalog.clock
    topic = scene.topic_with_extents(2)
    wrongly_dead, live = (each.file_id for each in scene.extents(topic))
    dead = scene.topic("deleted")
    scene.commit(dead, run_of(1))
    (extent,) = scene.extents(dead)
    catalog.topics.delete("deleted")
    while catalog.garbage.remove_deleted():
        pass
    with psycopg.connect(catalog_url) as connection:
        connection.execute(
            "UPDATE siltstone.files SET live_extents = 0, dead_ms = 1 WHERE file_id = %s", (wrongly_dead,)
        )
    file_ids = [wrongly_dead, live, extent.file_id, scene.ids.new_uuid()]
    assert catalog.deletions.confirm_dead_files(file_ids, clock.now_ms()) == frozenset()
    assert catalog.deletions.confirm_dead_files(file_ids, clock.now_ms() + 1) == {extent.file_id}


def test_orphans_are_confirmed_only_after_their_owner_ended(scene: Scene) -> None:
    catalog, clock = scene.catalog, scene.catalog.clock
    topic = scene.topic()
    scene.commit(topic, run_of(1))
    (extent,) = scene.extents(topic)
    names = [extent.object_name, "v1/an-orphan"]

    def confirmed() -> frozenset[str]:
        later_ms = clock.now_ms() + 1
        return catalog.deletions.confirm_orphans(_SESSION, scene.session_id, later_ms, names)

    assert confirmed() == frozenset()
    catalog.sessions.end(scene.session_id)
    assert confirmed() == {"v1/an-orphan"}
    unknown = scene.ids.new_uuid()
    assert not catalog.deletions.confirm_orphans(_SESSION, unknown, clock.now_ms() + 1, names)


def test_objects_of_lost_commits_that_wait_are_no_orphans(scene: Scene, catalog_url: str) -> None:
    """Their session is unsettled meanwhile; they stay although its row says something else."""
    catalog = scene.catalog
    waiting, other = (scene.file({PartitionId(scene.topic(name).topic_id, 0): [run_of(1)]}) for name in "ab")
    catalog.incarnations.declare_restore("a test")
    lost = AcknowledgedCommit(
        file_id=waiting.file_id,
        session_id=scene.session_id,
        object_name=waiting.object_name,
        number=1,
        committed_ms=0,
        offsets=(),
    )
    catalog.lost_commits.report([scene.session_id], [lost], catalog.incarnations.current().epoch)
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE siltstone.sessions SET unsettled = NULL")
    names = [waiting.object_name, other.object_name]
    later_ms = catalog.clock.now_ms() + 1
    confirmed = catalog.deletions.confirm_orphans(_SESSION, scene.session_id, later_ms, names)
    assert confirmed == {other.object_name}


def test_orphans_of_a_job_are_confirmed_after_it_finished(scene: Scene) -> None:
    catalog, clock = scene.catalog, scene.catalog.clock
    topic = scene.topic_with_extents(2)
    job = scene.claimed(scene.extents(topic))
    assert job.attempt_id is not None

    def confirmed() -> frozenset[str]:
        later_ms, job_id = clock.now_ms() + 1, job.spec.job_id
        return catalog.deletions.confirm_orphans(OwnerKind.JOB, job_id, later_ms, ["v1/an-orphan"])

    assert confirmed() == frozenset()
    catalog.jobs.fail(job.spec.job_id, job.attempt_id, "a test")
    assert confirmed() == {"v1/an-orphan"}


def _owner(scene: Scene, kind: OwnerKind) -> tuple[UUID, Callable[[], None]]:
    """Return an open owner, and a function that ends it."""
    if kind is _SESSION:
        return scene.session_id, partial(scene.catalog.sessions.end, scene.session_id)
    job = scene.claimed(scene.extents(scene.topic_with_extents(2)))
    assert job.attempt_id is not None
    return job.spec.job_id, partial(scene.catalog.jobs.fail, job.spec.job_id, job.attempt_id, "a test")


@pytest.mark.parametrize("kind", OwnerKind)
def test_an_owner_is_ended_or_unknown_or_neither(scene: Scene, kind: OwnerKind) -> None:
    deletions, later_ms = scene.catalog.deletions, scene.catalog.clock.now_ms() + 1
    owner_id, end = _owner(scene, kind)
    assert not deletions.confirm_ended(kind, owner_id, later_ms)
    assert not deletions.confirm_unknown(kind, owner_id)
    end()
    assert deletions.confirm_ended(kind, owner_id, later_ms)
    assert not deletions.confirm_ended(kind, owner_id, later_ms - 1)
    assert not deletions.confirm_unknown(kind, owner_id)
    assert deletions.confirm_unknown(kind, scene.ids.new_uuid())


def test_every_confirmation_writes(scene: Scene, catalog_url: str) -> None:
    deletions, clock = scene.catalog.deletions, scene.catalog.clock
    stranger = scene.ids.new_uuid()
    assert _confirmed_ms(catalog_url) is None
    for confirm in (
        lambda: deletions.confirm_dead_files([], 0),
        lambda: deletions.confirm_orphans(_SESSION, stranger, 0, []),
        lambda: deletions.confirm_ended(_SESSION, stranger, 0),
        lambda: deletions.confirm_unknown(_SESSION, stranger),
    ):
        clock.sleep(1)
        confirm()
        assert _confirmed_ms(catalog_url) == clock.now_ms()


def test_live_topics_are_not_confirmed_as_gone(scene: Scene) -> None:
    """The catalog distinguishes a deleted topic from one that it never had, and whether logs must stay."""
    live, deleted = scene.topic("live"), scene.topic("deleted")
    local = scene.catalog.topics.create("local", 1, {"storage.mode": "local"})
    for each in (deleted, local):
        scene.catalog.topics.delete(each.name)
    unknown = scene.ids.new_uuid()
    ids = [live.topic_id, deleted.topic_id, local.topic_id, unknown]
    assert scene.catalog.deletions.confirm_gone_topics(ids) == {
        deleted.topic_id: TopicAbsence.PURGED,
        local.topic_id: TopicAbsence.DELETED,
        unknown: TopicAbsence.UNKNOWN,
    }
