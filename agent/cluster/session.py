"""The agent's session: the prefix of its files' names, kept alive by heartbeats.

A silent session may be fenced during cleanup. The catalog then accepts no commit of files below its prefix.
The agent holds no state that others need, so it continues with a new session: files of the old session fail
(their producers retry), and new files are written below the new prefix.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

import structlog

from agent.runtime.health import start_essential_task, stop_task
from catalog.errors import SchemaVersionError
from core.errors import SiltstoneError, StaleStateError
from core.outage import Outage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from agent.runtime.health import CallHealth, CallTime
    from agent.runtime.work_pool import WorkPool
    from catalog.lifecycle.incarnation import Incarnation
    from catalog.model import Broker
    from core.clock import Clock
    from core.ids import Ids

_log = structlog.get_logger(__name__)


class SessionTable(Protocol):
    """The operations of the catalog that a session needs."""

    def register(self, session_id: UUID, description: str, broker: Broker | None, /) -> Incarnation:
        """Register the session, and the address at which the agent serves Kafka clients.

        Return the catalog's incarnation, in which the session commits.
        """
        ...

    def heartbeat(self, session_id: UUID, /) -> int:
        """Send a heartbeat, and return the milliseconds since the previous one.

        Raises `StaleStateError` if the session was fenced, and `SchemaVersionError` if a migration of the
        catalog excludes this version.
        """
        ...

    def end(self, session_id: UUID, /) -> object:
        """End the session; the catalog then rejects its commits."""
        ...


_MAX_EARLIER = 100

Recover: TypeAlias = "Callable[[Incarnation, Sequence[UUID]], Awaitable[None]]"
"""Recovers what the agent's earlier sessions lost when the catalog began an incarnation."""


async def recover_nothing(_incarnation: Incarnation, _sessions: Sequence[UUID], /) -> None:
    """Do nothing, for an agent that writes nothing."""


class Epoch(Protocol):
    """Observer of the catalog's epoch."""

    def observe(self, epoch: int, /) -> None:
        """Handle an epoch that the catalog has stated, before a recovery in this epoch begins."""
        ...


class Session:
    """The session under which new files are written.

    `start` and `stop` belong to one event loop, which sends the heartbeats. It is not the one that serves
    clients, so that they cannot delay a heartbeat. Properties and `report_fenced` are for any thread.

    Other agents consider this agent dead when its last heartbeat is `silent_ms` old, and alive again after
    the next one. They do not notify it. The session therefore reports whether they may consider it dead now
    (`is_overdue`), and how often they may have done so (`lapses`). It compares times of the catalog's clock
    and of its own clock. A heartbeat counts from the time when it was sent.

    Other agents count only silence while the catalog was reachable (`catalog.lifecycle.reachability`). This
    agent cannot distinguish an outage of the catalog from its own broken connection, so it counts all
    silence. It may report a lapse that no other agent noticed, and never misses one.

    If a migration excludes this version of Siltstone, heartbeats end with a call of `on_excluded`.
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
        heartbeat_time: CallTime,
        on_excluded: Callable[[SchemaVersionError], None],
        epoch: Epoch,
        recover: Recover = recover_nothing,
    ) -> None:
        self._sessions = sessions
        self._description = description
        self._pool = pool
        self._ids = ids
        self._clock = clock
        self._interval_ms = interval_ms
        self._silent_ms = silent_ms
        self._health = health
        self._heartbeat_time = heartbeat_time
        self._on_excluded = on_excluded
        self._outage = Outage("heartbeats", clock=clock, ids=ids, max_pause_seconds=interval_ms / 1000)
        self._epoch = epoch
        self.heartbeat_sent_at = clock.monotonic()
        self.lapses = 0
        self._recover = recover
        self._incarnation_id: UUID | None = None
        self._earlier: list[UUID] = []  # sessions since the last recovery, oldest first
        self._session_id: UUID | None = None
        self._broker: Broker | None = None
        self._fenced = asyncio.Event()
        self._heartbeats: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def session_id(self) -> UUID:
        """The session that commits the files written now."""
        if self._session_id is None:
            raise RuntimeError("the session was not started")
        return self._session_id

    @property
    def is_overdue(self) -> bool:
        """Return True if other agents may consider this agent dead, as far as it can know."""
        return self._clock.monotonic() - self.heartbeat_sent_at >= self._silent_ms / 1000

    @property
    def is_running(self) -> bool:
        """Return True if the task that sends heartbeats runs."""
        return self._heartbeats is not None and not self._heartbeats.done()

    def problem(self) -> str | None:
        """Return why the agent cannot commit or serve groups, or None if its session is good."""
        if self._fenced.is_set():
            return "was fenced, and no new session is registered yet"
        if self.is_overdue:
            return "has sent no heartbeat for so long that other agents may consider this agent dead"
        return None

    async def start(self, broker: Broker | None = None) -> None:
        """Register (as `broker`, if the agent serves Kafka clients) and start the heartbeats."""
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        await self._register()
        self._heartbeats = start_essential_task(self._run_heartbeats(), name="heartbeats")

    async def stop(self) -> None:
        """End the session. Call it after the last commit."""
        await stop_task(self._heartbeats)
        if self._session_id is not None:
            try:
                await self._pool.run(partial(self._sessions.end, self._session_id))
            except SiltstoneError as error:  # cleanup fences the silent session later
                _log.warning(
                    "the session could not be ended", session=str(self._session_id), reason=str(error)
                )

    def report_fenced(self, session_id: UUID) -> None:
        """Report that the catalog rejected `session_id`; if it is the current session, register a new one."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._note_fenced, session_id)

    def _note_fenced(self, session_id: UUID) -> None:
        if session_id == self._session_id:
            self._fenced.set()

    async def _register(self) -> None:
        session_id, sent_at = self._ids.new_uuid(), self._clock.monotonic()
        registering = partial(self._sessions.register, session_id, self._description, self._broker)
        incarnation = await self._pool.run(registering)
        self._epoch.observe(incarnation.epoch)
        earlier, self._earlier = self._earlier, [*self._earlier, session_id][-_MAX_EARLIER:]
        if incarnation.incarnation_id != self._incarnation_id:
            # The lost commits come first in the log, so they precede the first write of the new session.
            await self._recover_for(session_id, incarnation, earlier)
            self._incarnation_id, self._earlier = incarnation.incarnation_id, [session_id]
        self._session_id, self.heartbeat_sent_at = session_id, sent_at
        self._fenced.clear()

    async def _recover_for(self, session_id: UUID, incarnation: Incarnation, earlier: Sequence[UUID]) -> None:
        """Recover while the new session is kept alive; after a failure end it, because it wrote nothing."""
        heartbeats = asyncio.get_running_loop().create_task(self._keep_alive(session_id), name="keep alive")
        try:
            await self._recover(incarnation, earlier)
        except Exception:
            with contextlib.suppress(SiltstoneError):
                await self._pool.run(partial(self._sessions.end, session_id))
                self._earlier.remove(session_id)
            raise
        finally:
            await stop_task(heartbeats)

    async def _keep_alive(self, session_id: UUID) -> None:
        """Send heartbeats of a session that writes nothing yet; its next regular one reports failures."""
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            with contextlib.suppress(SiltstoneError):
                await self._pool.run(partial(self._sessions.heartbeat, session_id))

    async def _run_heartbeats(self) -> None:
        while True:
            # Not `wait_for`: before Python 3.12 it swallows a cancellation that coincides with the event.
            with contextlib.suppress(TimeoutError):
                # After a late heartbeat, other agents may consider this one dead: send the next one at once.
                # Do the same after one that failed or took long, to learn whether the catalog commits again.
                is_urgent = self.is_overdue or self._heartbeat_time.is_doubtful
                async with asyncio.timeout(0 if is_urgent else self._interval_ms / 1000):
                    await self._fenced.wait()
            try:
                await self._send_heartbeat()
            except SchemaVersionError as error:
                self._on_excluded(error)
                return
            except Exception as error:  # noqa: BLE001  # heartbeats continue after any failure
                await asyncio.sleep(self._outage.failed(error))
            else:
                self._health.succeeded()
                self._outage.succeeded()

    async def _send_heartbeat(self) -> None:
        if not self._fenced.is_set():
            sent_at = self._clock.monotonic()
            self._heartbeat_time.began()
            try:
                silent_ms = await self._pool.run(partial(self._sessions.heartbeat, self.session_id))
            except StaleStateError:
                self._heartbeat_time.succeeded()  # the catalog has responded
                self._fenced.set()
            else:
                self._heartbeat_time.succeeded()
                self.lapses += silent_ms >= self._silent_ms or self.is_overdue
                self.heartbeat_sent_at = sent_at
        if self._fenced.is_set():
            old = self._session_id
            await self._register()
            self.lapses += 1
            _log.warning(
                "the session was fenced and replaced by a new one", old=str(old), new=str(self._session_id)
            )
