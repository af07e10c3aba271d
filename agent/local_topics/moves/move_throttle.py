"""The rate of moves between log directories: Kafka's `replica.alter.log.dirs.io.max.bytes.per.second`.

Clients set it for one broker or for all while moves run (`kafka-reassign-partitions`, `kafka-configs`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from catalog.config.broker_definitions import MOVE_RATE
from catalog.config.repository import ALL_BROKERS
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from agent.runtime.work_pool import WorkPool
    from catalog.config.repository import BrokerConfigs
    from core.clock import Clock

_REFRESH_SECONDS: Final = 2.0
_log = structlog.get_logger(__name__)


class MoveThrottle:
    """Limits the bytes per second of all moves of an agent. Belongs to the event loop."""

    def __init__(self, configs: BrokerConfigs, node_id: int, *, pool: WorkPool, clock: Clock) -> None:
        self._configs = configs
        self._names = (str(node_id), ALL_BROKERS)
        self._pool = pool
        self._clock = clock
        self._rate: float | None = None
        self._read_at = float("-inf")
        self._free_at = float("-inf")

    async def take(self, count: int, cancelled: asyncio.Event) -> None:
        """Count bytes that were copied, and wait while the rate is exceeded and the move is wanted."""
        await self._refresh()
        self._free_at = max(self._free_at, self._clock.monotonic()) + count / max(self._limit, 1.0)
        while not cancelled.is_set():
            wait = self._free_at - self._clock.monotonic()
            if wait <= 0:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(cancelled.wait(), min(wait, _REFRESH_SECONDS))
            await self._refresh()

    @property
    def _limit(self) -> float:
        return float("inf") if self._rate is None else self._rate

    async def _refresh(self) -> None:
        """Read the rate if the known one is old. While the catalog does not respond, the known one stays.

        A new rate also counts for the bytes that were copied at the old one.
        """
        if self._clock.monotonic() - self._read_at < _REFRESH_SECONDS:
            return
        self._read_at = self._clock.monotonic()
        try:
            found = await self._pool.run(partial(self._configs.find, self._names))
        except SiltstoneError as error:
            _log.warning("rate of moves unknown", reason=str(error))
            return
        explicit = [found[name] for name in self._names if not found[name].is_default(MOVE_RATE)]
        before = max(self._limit, 1.0)
        self._rate = float(explicit[0].value(MOVE_RATE)) if explicit else None
        now = self._clock.monotonic()
        if self._free_at > now:
            self._free_at = now + (self._free_at - now) * (before / max(self._limit, 1.0))
