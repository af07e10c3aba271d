"""The agent's session: the prefix its files are written under, and the heartbeat that keeps it.

A session that went silent may be fenced by whoever cleans up: nothing below its prefix can be committed
any more. An agent keeps no state that others need, so a fenced one simply goes on with a new session: files
of the old one fail (their producers are told to send again), new files are written below the new prefix.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog

from core.errors import SiltstoneError, StaleStateError

if TYPE_CHECKING:
    from uuid import UUID

    from agent.runtime.health import CallHealth
    from agent.runtime.work_pool import WorkPool
    from catalog.model import Broker
    from core.clock import Clock
    from core.ids import Ids

_log = structlog.get_logger(__name__)


class SessionTable(Protocol):
    """What a session needs of the catalog."""

    def register(self, session_id: UUID, description: str, broker: Broker | None, /) -> object:
        """Make the session known, and the address at which it serves Kafka clients."""
        ...

    def heartbeat(self, session_id: UUID, /) -> int:
        """Say that it lives; the milliseconds since it said so last. `StaleStateError` when it is over."""
        ...

    def end(self, session_id: UUID, /) -> object:
        """Say that nothing will be committed by it any more."""
        ...


class Session:
    """The one session that new files are written under. Belongs to the event loop.

    Who hears nothing of it for `silent_ms` takes the agent for dead. Nobody says so, and with its next
    heartbeat it is alive again; so the session tells whether that may be so now (`is_overdue`), and how
    often it has been (`lapses`): by the catalog's clock, and by its own, on which a heartbeat counts from
    when it was sent.
    """

    def __init__(
        self,
        sessions: SessionTable,
        *,
        description: str,
        pool: WorkPool,
        ids: Ids,
        clock: Clock,
        interval_ms: int,
        silent_ms: int,
        health: CallHealth,
    ) -> None:
        self._sessions = sessions
        self._description = description
        self._pool = pool
        self._ids = ids
        self._clock = clock
        self._interval_ms = interval_ms
        self._silent_ms = silent_ms
        self._health = health
        self.heartbeat_sent_at = clock.monotonic()
        self.lapses = 0
        self._session_id: UUID | None = None
        self._broker: Broker | None = None
        self._fenced = asyncio.Event()
        self._heartbeats: asyncio.Task[None] | None = None

    @property
    def session_id(self) -> UUID:
        """The session of files that are sealed now."""
        if self._session_id is None:
            raise RuntimeError("the session was not started")
        return self._session_id

    @property
    def is_overdue(self) -> bool:
        """Whether others may take this agent for dead, as far as it can tell."""
        return self._clock.monotonic() - self.heartbeat_sent_at >= self._silent_ms / 1000

    async def start(self, broker: Broker | None = None) -> None:
        """Register, as `broker` when Kafka clients are served, and keep the session alive from now on."""
        self._broker = broker
        await self._register()
        self._heartbeats = asyncio.get_running_loop().create_task(self._run_heartbeats(), name="heartbeat")

    async def stop(self) -> None:
        """End the session; only after the last commit."""
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
        if self._session_id is not None:
            try:
                await self._pool.run(partial(self._sessions.end, self._session_id))
            except SiltstoneError as error:  # it will be fenced for its silence
                _log.warning(
                    "the session could not be ended", session=str(self._session_id), reason=str(error)
                )

    def report_fenced(self, session_id: UUID) -> None:
        """Report that the catalog refused `session_id`; a new session is taken if it is the one in use."""
        if session_id == self._session_id:
            self._fenced.set()

    async def _register(self) -> None:
        session_id, sent_at = self._ids.new_uuid(), self._clock.monotonic()
        await self._pool.run(partial(self._sessions.register, session_id, self._description, self._broker))
        self._session_id, self.heartbeat_sent_at = session_id, sent_at
        self._fenced.clear()

    async def _run_heartbeats(self) -> None:
        while True:
            # Not `wait_for`: until Python 3.12 that one overhears a cancellation that comes with the event.
            with contextlib.suppress(TimeoutError):
                # One that was overdue when it arrived has kept nothing: the next follows at once.
                async with asyncio.timeout(0 if self.is_overdue else self._interval_ms / 1000):
                    await self._fenced.wait()
            try:
                await self._send_heartbeat()
            except Exception as error:  # noqa: BLE001  # a heart that misses a beat goes on beating
                self._health.failed()
                _log.warning("the heartbeat failed", session=str(self._session_id), reason=str(error))
                await asyncio.sleep(self._interval_ms / 1000)
            else:
                self._health.succeeded()

    async def _send_heartbeat(self) -> None:
        if not self._fenced.is_set():
            sent_at = self._clock.monotonic()
            try:
                silent_ms = await self._pool.run(partial(self._sessions.heartbeat, self.session_id))
            except StaleStateError:
                self._fenced.set()
            else:
                self.lapses += silent_ms >= self._silent_ms or self.is_overdue
                self.heartbeat_sent_at = sent_at
        if self._fenced.is_set():
            old = self._session_id
            await self._register()
            self.lapses += 1
            _log.warning(
                "the session was fenced; a new one took its place", old=str(old), new=str(self._session_id)
            )
