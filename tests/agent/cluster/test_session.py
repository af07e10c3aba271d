"""Sessions and late heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from agent.cluster.catalog_epoch import CatalogEpoch
from agent.cluster.session import Session
from agent.runtime.health import CallHealth, CallTime
from agent.runtime.work_pool import WorkPool
from catalog.errors import CatalogUnavailableError, SchemaVersionError, SessionFencedError
from catalog.lifecycle.incarnation import Incarnation
from core.clock import ManualClock
from core.ids import SeededIds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from catalog.model import Broker

_SILENT_SECONDS = 10
_SLOW_SECONDS = 2.5
_TIMEOUT_SECONDS = 60.0  # of the test


class _Sessions:
    """A catalog that responds to heartbeats with `response`, after `takes_seconds` on the agent's clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.response: int | Exception = 0
        self.takes_seconds = 0.0
        self.epoch = 0
        self.has_beaten = threading.Event()
        self.on_beat: Callable[[], object] = lambda: None
        self.beating: list[UUID] = []
        self.ended: list[UUID] = []

    def register(self, _session_id: UUID, _description: str, _broker: Broker | None, /) -> Incarnation:
        self.clock.advance(self.takes_seconds)
        return Incarnation(
            epoch=self.epoch, incarnation_id=UUID(int=self.epoch), started_ms=0, reason="a test"
        )

    def heartbeat(self, session_id: UUID, /) -> int:
        self.beating.append(session_id)
        self.has_beaten.set()
        self.clock.advance(self.takes_seconds)
        self.on_beat()
        if isinstance(self.response, Exception):
            raise self.response
        return self.response

    def end(self, session_id: UUID, /) -> None:
        self.ended.append(session_id)


def _run(story: Callable[[_Sessions, Session], Awaitable[None]]) -> None:
    """Run a story about a session that sends heartbeats only when the story does."""
    clock = ManualClock()
    sessions, pool = _Sessions(clock), WorkPool("session", threads=1, max_waiting=1)

    async def run() -> None:
        session = Session(
            sessions,
            description="a test",
            pool=pool,
            ids=SeededIds(1, clock),
            clock=clock,
            interval_ms=3_600_000,
            silent_ms=1000 * _SILENT_SECONDS,
            health=CallHealth(clock, limit_seconds=60),
            heartbeat_time=CallTime(clock, limit_seconds=_SLOW_SECONDS),
            on_excluded=lambda _: None,
            epoch=CatalogEpoch(),
        )
        await session.start()
        assert session._heartbeats is not None
        session._heartbeats.cancel()
        await story(sessions, session)
        await session.stop()

    asyncio.run(run())
    pool.close()


def test_heartbeats_end_when_a_migration_excludes_this_version() -> None:
    async def run() -> None:
        clock = ManualClock()
        sessions, pool = _Sessions(clock), WorkPool("session", threads=1, max_waiting=1)
        sessions.response = SchemaVersionError("the catalog has schema version 99")
        excluded: asyncio.Future[SchemaVersionError] = asyncio.get_running_loop().create_future()
        session = Session(
            sessions,
            description="a test",
            pool=pool,
            ids=SeededIds(1, clock),
            clock=clock,
            interval_ms=1,
            silent_ms=1000 * _SILENT_SECONDS,
            health=CallHealth(clock, limit_seconds=60),
            heartbeat_time=CallTime(clock, limit_seconds=_SLOW_SECONDS),
            on_excluded=excluded.set_result,
            epoch=CatalogEpoch(),
        )
        await session.start()
        assert await asyncio.wait_for(excluded, _TIMEOUT_SECONDS) is sessions.response
        assert session._heartbeats is not None
        await asyncio.wait_for(session._heartbeats, _TIMEOUT_SECONDS)
        await session.stop()
        pool.close()

    asyncio.run(run())


def test_timely_heartbeats_cause_no_lapse() -> None:
    async def story(sessions: _Sessions, session: Session) -> None:
        for _ in range(3):
            sessions.clock.advance(_SILENT_SECONDS - 0.1)
            assert not session.is_overdue
            sessions.response = 1000 * _SILENT_SECONDS - 100
            await session._send_heartbeat()
        assert session.lapses == 0

    _run(story)


def test_silence_on_the_catalogs_clock_is_a_lapse() -> None:
    """The machine was suspended, and its clock with it."""

    async def story(sessions: _Sessions, session: Session) -> None:
        sessions.response = 1000 * _SILENT_SECONDS
        await session._send_heartbeat()
        assert session.lapses == 1
        assert not session.is_overdue

    _run(story)


def test_a_heartbeat_counts_from_the_time_it_was_sent() -> None:
    """The catalog may have recorded a slow heartbeat at its start, while the agent saw its end."""

    async def story(sessions: _Sessions, session: Session) -> None:
        sessions.takes_seconds = _SILENT_SECONDS - 1
        await session._send_heartbeat()
        assert session.lapses == 0
        sessions.takes_seconds = 1
        await session._send_heartbeat()
        assert session.lapses == 1
        assert not session.is_overdue

    _run(story)


def test_failed_heartbeats_do_not_count() -> None:
    async def story(sessions: _Sessions, session: Session) -> None:
        sessions.response = CatalogUnavailableError("no catalog", remedy="wait")
        sessions.takes_seconds = _SILENT_SECONDS / 2
        for is_overdue in (False, True):
            try:
                await session._send_heartbeat()
            except CatalogUnavailableError:
                assert session.is_overdue is is_overdue
        sessions.response = 0
        await session._send_heartbeat()
        assert session.lapses == 1

    _run(story)


def test_the_replacement_of_a_fenced_session_begins_with_a_lapse() -> None:
    async def story(sessions: _Sessions, session: Session) -> None:
        before = session.session_id
        sessions.response = SessionFencedError("fenced", remedy="register a new session")
        await session._send_heartbeat()
        assert session.session_id != before
        assert session.lapses == 1

    _run(story)


def test_a_session_that_is_fenced_while_it_stops_still_stops() -> None:
    async def story(_sessions: _Sessions, session: Session) -> None:
        await session.start()
        await asyncio.sleep(0)
        session.report_fenced(session.session_id)
        await asyncio.wait_for(session.stop(), _TIMEOUT_SECONDS)

    _run(story)


def test_a_late_heartbeat_is_followed_by_another_at_once() -> None:
    """Until then the agent does not know whether others consider it dead."""

    async def story(sessions: _Sessions, session: Session) -> None:
        sessions.takes_seconds = _SILENT_SECONDS
        await session.start()
        sessions.takes_seconds = 0.0
        assert await asyncio.to_thread(sessions.has_beaten.wait, _TIMEOUT_SECONDS)

    _run(story)


def test_a_heartbeat_that_hangs_is_noticed_before_it_ends() -> None:
    async def story(sessions: _Sessions, session: Session) -> None:
        problem = session._heartbeat_time.problem
        during: list[str | None] = []
        after: list[str | None] = []
        sessions.on_beat = lambda: during.append(problem())
        for takes_seconds in (2.0, 7.0, 3.0, 0.5):
            sessions.takes_seconds = takes_seconds
            await session._send_heartbeat()
            after.append(problem())
        begun, last = "a write has not succeeded for {} seconds", "the last write took {} seconds"
        assert during == [None, begun.format("7.0"), begun.format("3.0"), last.format("3.0")]
        assert after == [None, last.format("7.0"), last.format("3.0"), None]

    _run(story)


def test_a_fenced_session_does_not_make_the_catalog_look_slow() -> None:
    """The catalog responds; the recovery before the new session may take long."""

    async def story(sessions: _Sessions, session: Session) -> None:
        sessions.response = SessionFencedError("fenced", remedy="register a new session")
        sessions.on_beat = lambda: setattr(sessions, "takes_seconds", 7.0)
        await session._send_heartbeat()
        assert session._heartbeat_time.problem() is None

    _run(story)


@pytest.mark.parametrize("failure", [CatalogUnavailableError("no catalog"), None])
def test_a_failed_or_slow_heartbeat_is_followed_by_another_at_once(
    failure: Exception | None,
) -> None:
    """So the agent soon learns that the catalog commits again."""

    async def story(sessions: _Sessions, session: Session) -> None:
        sessions.response = failure or 0
        sessions.takes_seconds = _SLOW_SECONDS
        with contextlib.suppress(CatalogUnavailableError):
            await session._send_heartbeat()
        sessions.response, sessions.takes_seconds = 0, 0.0
        sessions.has_beaten.clear()
        assert not session.is_overdue
        beating = asyncio.create_task(session._run_heartbeats())
        assert await asyncio.to_thread(sessions.has_beaten.wait, _TIMEOUT_SECONDS)
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)

    _run(story)


def test_a_session_sends_heartbeats_while_its_agent_recovers_what_was_lost() -> None:
    """Recovery reads and commits many files. Meanwhile the new session must not look silent."""

    async def story(sessions: _Sessions, session: Session) -> None:
        recovered = session.session_id

        async def recover(_incarnation: Incarnation, earlier: Sequence[UUID]) -> None:
            assert earlier == [recovered]
            sessions.has_beaten.clear()
            assert await asyncio.to_thread(sessions.has_beaten.wait, _TIMEOUT_SECONDS)

        session._interval_ms = 1
        session._recover = recover
        sessions.epoch = 1
        await session._register()
        assert sessions.beating[-1] == session.session_id != recovered
        assert sessions.ended == []

    _run(story)


def test_a_session_whose_recovery_fails_is_ended() -> None:
    """It wrote nothing, so nothing of it can be lost; the next attempt recovers the same sessions."""

    async def story(sessions: _Sessions, session: Session) -> None:
        before = session.session_id
        attempts: list[Sequence[UUID]] = []

        async def recover(_incarnation: Incarnation, earlier: Sequence[UUID]) -> None:
            attempts.append(earlier)
            if len(attempts) == 1:
                raise CatalogUnavailableError("away")

        session._recover = recover
        sessions.epoch = 1
        with pytest.raises(CatalogUnavailableError):
            await session._register()
        assert session.session_id == before
        assert len(sessions.ended) == 1
        await session._register()
        assert attempts == [[before], [before]]
        assert session.session_id not in {before, *sessions.ended}

    _run(story)
