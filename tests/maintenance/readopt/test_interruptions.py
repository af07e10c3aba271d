"""A readoption that is interrupted continues with all files that it has not judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from catalog.errors import CatalogReplacedError
from maintenance.readopt import read_lost_file, readopt, readopt_file, run
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from object_store.local.store import LocalStore
from tests.agent.write.test_loss_recovery import World, recover_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from catalog.model import FileCommit
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from maintenance.readopt import LostFile, ReadoptedFile
    from object_store.interface import ObjectStore

    Read = Callable[[LostFile], FileCommit]


@pytest.fixture
def world(catalog: Catalog, catalog_url: str, clock: Clock, ids: Ids, tmp_path: Path) -> World:
    found = World(catalog, LocalStore(tmp_path, ids), clock, ids, catalog_url)
    verify_binding(found.store, catalog.store_binding, ids)
    return found


def test_files_of_an_unknown_session_are_found_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first readopted file makes the session known, whose registration was lost."""
    agent = world.agent()
    topic = world.catalog.topics.create("t", 1, {})
    for number in range(3):
        agent.write(topic, 3 * number)
        world.tick()  # unreported files are in the order of their ids
    world.lose_commits()
    world.execute("DELETE FROM sessions")
    world.begin_epoch()
    done: list[LostFile] = []

    def fail_after_one(
        catalog: Catalog, read: Read, lost: LostFile, *, epoch: int, discard_unknown_topics: bool
    ) -> ReadoptedFile:
        if done:
            raise KeyboardInterrupt
        done.append(lost)
        return readopt_file(catalog, read, lost, epoch=epoch, discard_unknown_topics=discard_unknown_topics)

    with monkeypatch.context() as patch:
        patch.setattr(run, "readopt_file", fail_after_one)
        with pytest.raises(KeyboardInterrupt):
            readopt(world.catalog, world.store, apply=True)
    assert not world.catalog.lost_commits.unverified(10_000), "no agent waits for the session"
    world.catalog.topics.create("u", 1, {})
    assert readopt(world.catalog, world.store).counts == {"waiting": 2}
    assert readopt(world.catalog, world.store, apply=True).counts == {"readopted": 2}
    assert world.end(topic) == 9
    assert not world.catalog.lost_commits.is_any_unsettled()


def test_a_failover_during_a_run_settles_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new history may lack what the run committed before, so all files are to be found again."""
    topic = world.catalog.topics.create("t", 1, {})
    agent = world.agent()
    for number in range(2):
        agent.write(topic, 3 * number)
        world.tick()
    world.lose_commits()
    world.begin_epoch()

    def fail_over_after_one(
        catalog: Catalog, read: Read, lost: LostFile, *, epoch: int, discard_unknown_topics: bool
    ) -> ReadoptedFile:
        done = readopt_file(catalog, read, lost, epoch=epoch, discard_unknown_topics=discard_unknown_topics)
        world.lose_commits()
        world.begin_epoch()
        return done

    with monkeypatch.context() as patch:
        patch.setattr(run, "readopt_file", fail_over_after_one)
        with pytest.raises(CatalogReplacedError):
            readopt(world.catalog, world.store, apply=True)
    assert world.catalog.lost_commits.is_any_unsettled()
    assert readopt(world.catalog, world.store, apply=True).counts == {"readopted": 2}
    assert world.end(topic) == 6


def test_a_file_that_could_not_be_read_is_found_again_and_kept_before_it_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent has reported it, so no search among the objects of the session is needed."""
    topic = world.catalog.topics.create("t", 1, {})
    agent = world.agent()
    agent.write(topic, 0)
    (lost,) = agent.acknowledged.recent()
    world.store.delete([lost.object_name], purpose=Purpose.FSCK)
    world.store.put(lost.object_name, [b"?" * 100], purpose=Purpose.INGEST)
    world.lose_commits()
    world.begin_epoch()
    recover_all([agent])
    for _ in range(2):
        assert readopt(world.catalog, world.store).counts == {"unreadable": 1}
        assert readopt(world.catalog, world.store, apply=True).counts == {"unreadable": 1}

    world.execute("UPDATE sessions SET unsettled = NULL")  # as agents of the previous release do
    was_kept: list[bool] = []

    def read_and_note(store: ObjectStore, file: LostFile) -> FileCommit:
        was_kept.append(world.catalog.lost_commits.is_any_unsettled())
        return read_lost_file(store, file)

    monkeypatch.setattr(run, "read_lost_file", read_and_note)
    assert readopt(world.catalog, world.store, apply=True).kept == 1
    assert was_kept == [True]
