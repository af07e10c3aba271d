"""What an agent knows of whether others take it for dead."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from agent.cluster.session import Session
from agent.runtime.health import CallHealth
from agent.runtime.work_pool import WorkPool
from catalog.errors import CatalogUnavailableError, SessionFencedError
from core.clock import ManualClock
from core.ids import SeededIds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from catalog.model import Broker

_SILENT_SECONDS = 10
_PATIENCE_SECONDS = 60.0  # of the test


class _Sessions:
    """A catalog that answers heartbeats as it was told, after so long by the agent's clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.answer: int | Exception = 0
        self.takes_seconds = 0.0
        self.has_beaten = threading.Event()

    def register(self, _session_id: UUID, _description: str, _broker: Broker | None, /) -> None:
        self.clock.advance(self.takes_seconds)

    def heartbeat(self, session_id: UUID, /) -> int:
        del session_id
        self.has_beaten.set()
        self.clock.advance(self.takes_seconds)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def end(self, session_id: UUID, /) -> None:
        """Nobody asks why."""


def _told(story: Callable[[_Sessions, Session], Awaitable[None]]) -> None:
    """Run a story about a session whose heart beats only when the story says so."""
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
        )
        await session.start()
        assert session._heartbeats is not None
        session._heartbeats.cancel()
        await story(sessions, session)
        await session.stop()

    asyncio.run(run())
    pool.close()


def test_a_heartbeat_in_time_keeps_the_standing() -> None:
    async def story(sessions: _Sessions, session: Session) -> None:
        for _ in range(3):
            sessions.clock.advance(_SILENT_SECONDS - 0.1)
            assert not session.is_overdue
            sessions.answer = 1000 * _SILENT_SECONDS - 100
            await session._send_heartbeat()
        assert session.lapses == 0

    _told(story)


def test_silence_by_the_catalogs_clock_is_a_lapse() -> None:
    """The machine was suspended, and its own clock with it."""

    async def story(sessions: _Sessions, session: Session) -> None:
        sessions.answer = 1000 * _SILENT_SECONDS
        await session._send_heartbeat()
        assert session.lapses == 1
        assert not session.is_overdue

    _told(story)


def test_a_heartbeat_counts_from_when_it_was_sent() -> None:
    """One that took long may have been stamped at its beginning, and was seen at its end."""

    async def story(sessions: _Sessions, session: Session) -> None:
        sessions.takes_seconds = _SILENT_SECONDS - 1
        await session._send_heartbeat()
        assert session.lapses == 0
        sessions.takes_seconds = 1
        await session._send_heartbeat()
        assert session.lapses == 1
        assert not session.is_overdue

    _told(story)


def test_heartbeats_that_fail_are_none() -> None:
    async def story(sessions: _Sessions, session: Session) -> None:
        sessions.answer = CatalogUnavailableError("no catalog", remedy="wait")
        sessions.takes_seconds = _SILENT_SECONDS / 2
        for is_overdue in (False, True):
            try:
                await session._send_heartbeat()
            except CatalogUnavailableError:
                assert session.is_overdue is is_overdue
        sessions.answer = 0
        await session._send_heartbeat()
        assert session.lapses == 1

    _told(story)


def test_a_session_in_the_place_of_a_fenced_one_begins_with_a_lapse() -> None:
    async def story(sessions: _Sessions, session: Session) -> None:
        before = session.session_id
        sessions.answer = SessionFencedError("fenced", remedy="register a new session")
        await session._send_heartbeat()
        assert session.session_id != before
        assert session.lapses == 1

    _told(story)


def test_a_session_that_is_fenced_while_it_stops_does_stop() -> None:
    async def story(_sessions: _Sessions, session: Session) -> None:
        await session.start()
        await asyncio.sleep(0)
        session.report_fenced(session.session_id)
        await asyncio.wait_for(session.stop(), _PATIENCE_SECONDS)

    _told(story)


def test_a_heartbeat_that_arrives_too_late_is_followed_by_another_at_once() -> None:
    """However long the interval is: until then this agent does not know that it is not taken for dead."""

    async def story(sessions: _Sessions, session: Session) -> None:
        sessions.takes_seconds = _SILENT_SECONDS
        await session.start()
        sessions.takes_seconds = 0.0
        assert await asyncio.to_thread(sessions.has_beaten.wait, _PATIENCE_SECONDS)

    _told(story)
