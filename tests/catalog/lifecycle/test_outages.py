"""Silence counts only while the catalog was reachable; sessions and jobs are lost in two steps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from catalog.database.limits import DatabaseLimits
from catalog.errors import CatalogUnavailableError
from catalog.lifecycle.reachability import MAX_GAP_MS
from catalog.model import Broker, JobState
from catalog.open import open_catalog
from core.clock import ManualClock
from core.ids import SeededIds
from tests.catalog.scene import Scene, run_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from catalog.model import Job
    from catalog.open import Catalog
    from core.clock import Clock
    from tests.fixtures.restartable import RestartablePostgres

SILENCE_MS = 60_000
CONFIRM_MS = 30_000
BROKER_SILENT_MS = 10_000
HEARTBEAT_SECONDS = 3
OWNERS = 50


@pytest.fixture
def restarted(restartable_postgres: RestartablePostgres) -> Iterator[Scene]:
    """Return a scene on the server that is stopped, with an injected clock."""
    clock = ManualClock()
    ids = SeededIds(1, clock)
    limits = DatabaseLimits(connect_seconds=2)
    with closing(open_catalog(restartable_postgres.url, clock, ids, limits=limits)) as catalog:
        yield Scene.set_up(catalog, ids)


def look(catalog: Catalog) -> tuple[list[UUID], list[UUID]]:
    """Look for silent owners; return the fenced sessions and the released jobs."""
    return (
        catalog.sessions.fence_silent(SILENCE_MS, CONFIRM_MS),
        catalog.jobs.release_expired(SILENCE_MS, CONFIRM_MS),
    )


def brokers(scene: Scene) -> list[UUID]:
    sessions = [scene.ids.new_uuid() for _ in range(OWNERS)]
    for node_id, session_id in enumerate(sessions, start=1):
        broker = Broker(node_id=node_id, host="127.0.0.1", port=9000 + node_id)
        scene.catalog.sessions.register(session_id, "an agent", broker)
    return sessions


def running_jobs(scene: Scene) -> list[Job]:
    topic = scene.topic(partitions=OWNERS)
    for partition in range(OWNERS):
        scene.commit(topic, run_of(5), partition=partition)
        scene.submitted(scene.extents(topic, partition))
    return scene.catalog.jobs.claim("a driver", OWNERS)


def heartbeats(catalog: Catalog, sessions: list[UUID], jobs: list[Job]) -> None:
    for session_id in sessions:
        catalog.sessions.heartbeat(session_id)
    for job in jobs:
        assert job.attempt_id is not None
        catalog.jobs.heartbeat(job.spec.job_id, job.attempt_id)


def test_after_an_outage_only_the_dead_lose_their_sessions_and_jobs(
    restarted: Scene, restartable_postgres: RestartablePostgres
) -> None:
    """The server is away for ten minutes. One agent and one driver die meanwhile."""
    catalog, clock = restarted.catalog, restarted.catalog.clock._machine  # type: ignore[attr-defined]  # a CatalogClock
    assert isinstance(clock, ManualClock)
    sessions, jobs = brokers(restarted), running_jobs(restarted)
    heartbeats(catalog, sessions, jobs)
    restartable_postgres.stop()
    with pytest.raises(CatalogUnavailableError):
        catalog.sessions.heartbeat(sessions[0])
    clock.advance(600)
    restartable_postgres.start()

    assert len(catalog.brokers.live(BROKER_SILENT_MS)) == OWNERS
    assert look(catalog) == ([], [])
    assert len(catalog.brokers.live(BROKER_SILENT_MS)) == OWNERS
    fenced: list[UUID] = []
    released: list[UUID] = []
    for seconds in range(0, 60, HEARTBEAT_SECONDS):
        heartbeats(catalog, [restarted.session_id, *sessions[1:]], jobs[1:])
        more_fenced, more_released = look(catalog)
        fenced += more_fenced
        released += more_released
        live = len(catalog.brokers.live(BROKER_SILENT_MS))
        assert live == OWNERS - (seconds > BROKER_SILENT_MS / 1000)
        assert bool(fenced) == bool(released) == (seconds >= CONFIRM_MS / 1000)
        clock.advance(HEARTBEAT_SECONDS)
    assert (fenced, released) == ([sessions[0]], [jobs[0].spec.job_id])
    assert catalog.jobs.counts()[JobState.RUNNING] == OWNERS - 1


def test_repeated_outages_fence_nobody_who_had_no_chance_to_be_heard(scene: Scene, clock: Clock) -> None:
    """The catalog comes back for moments in which a process looks, but no owner sends a heartbeat."""
    assert isinstance(clock, ManualClock)
    for _ in range(5):
        clock.advance(2 * CONFIRM_MS / 1000)
        assert look(scene.catalog) == ([], [])
        clock.advance(5)
        assert look(scene.catalog) == ([], [])
    scene.catalog.sessions.heartbeat(scene.session_id)


def test_a_dead_session_is_fenced_although_every_look_is_late(scene: Scene, clock: Clock) -> None:
    """Looks are as rare as they may be without a gap."""
    assert isinstance(clock, ManualClock)
    fenced: list[UUID] = []
    looks = 0
    while not fenced:
        clock.advance(MAX_GAP_MS / 1000)
        fenced = scene.catalog.sessions.fence_silent(SILENCE_MS, CONFIRM_MS)
        looks += 1
    assert fenced == [scene.session_id]
    assert looks * MAX_GAP_MS <= SILENCE_MS + CONFIRM_MS + 2 * MAX_GAP_MS


def test_a_heartbeat_between_mark_and_fence_voids_the_mark(scene: Scene, clock: Clock) -> None:
    """A process that paused after its mark fences nothing when it continues."""
    assert isinstance(clock, ManualClock)
    other = scene.ids.new_uuid()
    scene.catalog.sessions.register(other, "another")
    clock.advance(SILENCE_MS / 1000 + 1)
    assert look(scene.catalog) == ([], [])  # marks both, and pauses
    for _ in range(20):
        clock.advance(HEARTBEAT_SECONDS)
        scene.catalog.sessions.heartbeat(scene.session_id)
    assert look(scene.catalog)[0] == [other]


def test_a_heartbeat_of_an_earlier_version_voids_the_mark(
    scene: Scene, clock: Clock, catalog_url: str
) -> None:
    """Its statement does not know the column of the mark."""
    assert isinstance(clock, ManualClock)
    clock.advance(SILENCE_MS / 1000 + 1)
    look(scene.catalog)
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        for _ in range(20):
            clock.advance(HEARTBEAT_SECONDS)
            connection.execute("UPDATE siltstone.sessions SET heartbeat_ms = %s", (clock.now_ms(),))
            assert look(scene.catalog) == ([], [])


def test_processes_that_fence_at_once_fence_each_session_once(scene: Scene, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    sessions = [scene.session_id, *brokers(scene)]
    clock.advance(SILENCE_MS / 1000 + 1)
    fenced: list[UUID] = []
    with ThreadPoolExecutor(4) as threads:
        for _ in range(6):
            for found in threads.map(lambda _: look(scene.catalog)[0], range(8)):
                fenced += found
            clock.advance(MAX_GAP_MS / 1000)
    assert sorted(fenced) == sorted(sessions)


def test_a_clock_that_steps_back_fences_nobody_who_is_alive(scene: Scene, clock: Clock) -> None:
    """A standby whose clock is behind becomes the primary; a dead session is still fenced in time."""
    assert isinstance(clock, ManualClock)
    dead = scene.ids.new_uuid()
    scene.catalog.sessions.register(dead, "dead")
    clock.advance(SILENCE_MS / 1000 + 1)
    look(scene.catalog)
    clock._start_ms -= 20_000
    fenced: list[UUID] = []
    for _ in range(50):
        clock.advance(HEARTBEAT_SECONDS)
        scene.catalog.sessions.heartbeat(scene.session_id)
        fenced += look(scene.catalog)[0]
    assert fenced == [dead]
