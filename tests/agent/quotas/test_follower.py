"""An agent follows the quotas in the catalog."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from agent.quotas.client_quotas import ClientQuotas
from agent.quotas.follower import QuotaFollower
from agent.quotas.rates import Windows
from agent.runtime.work_pool import WorkPool
from catalog.config.client_quotas import QuotaSnapshot
from catalog.config.quota_entities import QuotaEntity, QuotaKey
from catalog.errors import CatalogUnavailableError
from core.clock import ManualClock
from core.ids import SeededIds
from core.outage import Outage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.config.client_quotas import Quotas

pytestmark = pytest.mark.anyio
_KEY = QuotaKey.PRODUCER_BYTE_RATE


class Source:
    """Scripted quotas: the version is that of the last change, and calls fail while `is_down`."""

    def __init__(self) -> None:
        self.version: UUID | None = None
        self.limit: float | None = None
        self.is_down = False
        self.calls = 0

    def set(self, limit: float | None, version: int | None) -> None:
        self.limit, self.version = limit, None if version is None else UUID(int=version)

    def changed_since(self, version: UUID | None, /) -> QuotaSnapshot | None:
        self.calls += 1
        if self.is_down:
            raise CatalogUnavailableError("the catalog is away")
        if version == self.version:
            return None
        quotas: Quotas = {} if self.limit is None else {QuotaEntity(user="a"): {_KEY: self.limit}}
        return QuotaSnapshot(self.version, quotas)


@pytest.fixture
def pool() -> Iterator[WorkPool]:
    opened = WorkPool("catalog", threads=1, max_waiting=10)
    yield opened
    opened.close()


async def test_quotas_are_active_while_any_is_set(pool: WorkPool) -> None:
    """A version that goes back, because commits were lost, counts like any other. Outages change nothing."""
    clock, source = ManualClock(), Source()
    windows = Windows(count=2, window_ms=1000)
    quotas = ClientQuotas(clock, windows=windows, mutation_windows=windows)
    outage = Outage("quotas", clock=clock, ids=SeededIds(1, clock))
    follower = QuotaFollower(source, quotas, pool=pool, outage=outage, poll_seconds=0.001)

    async def until_limit(limit: float | None) -> None:
        async with asyncio.timeout(60):
            while True:
                active = follower.active
                found = None if active is None else active._limits[_KEY].find("a", "")
                if (None if found is None else found.value) == limit:
                    return
                calls = source.calls
                while source.calls == calls:  # noqa: ASYNC110  # polls what another task does
                    await asyncio.sleep(0.001)

    await follower.start()
    assert follower.active is None
    source.set(5.0, 1)
    await until_limit(5.0)
    source.is_down = True
    calls = source.calls
    async with asyncio.timeout(60):
        while source.calls < calls + 3:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.001)
    await follower.refresh_soon()
    assert follower.is_running
    await until_limit(5.0)
    source.set(7.0, 2)
    source.is_down = False
    await until_limit(7.0)
    source.set(5.0, 1)
    await until_limit(5.0)
    source.set(None, None)
    await until_limit(None)
    assert follower.active is None
    await follower.stop()
    assert not follower.is_running
