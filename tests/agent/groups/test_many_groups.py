"""Work on many groups yields to other requests: each choice may cost a hash for each agent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.runtime.cooperative_yield import CooperativeYield
from catalog.model import Broker
from core.clock import ManualClock
from tests.agent.groups.coordinators import SingleBroker, open_coordinator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.open import Catalog
    from core.ids import Ids

_GROUPS = 60
_AGENTS = [Broker(node_id=number, host="h", port=number) for number in range(1, 401)]


@pytest.mark.parametrize(("agents", "steps_each"), [(1, 1), (400, 101)])
def test_steps_follow_the_number_of_agents(
    catalog: Catalog, ids: Ids, monkeypatch: pytest.MonkeyPatch, agents: int, steps_each: int
) -> None:
    """For a list of all groups, and for the groups in memory after a change of the agents."""
    steps, step = [0], CooperativeYield.step

    async def live(_brokers: SingleBroker) -> Sequence[Broker]:
        return _AGENTS[:agents]

    async def count(yielding: CooperativeYield, steps_now: int = 1) -> None:
        steps[0] += steps_now
        await step(yielding, steps_now)

    for number in range(_GROUPS):
        catalog.groups.claim(f"g-{number}", ids.new_uuid(), create=True)

    async def scenario() -> None:
        async with open_coordinator(catalog, ManualClock(), ids) as coordinator:
            for number in range(_GROUPS):
                await coordinator.cache.find(f"g-{number}")
            monkeypatch.setattr(SingleBroker, "live", live)
            monkeypatch.setattr(CooperativeYield, "step", count)
            assert len(await coordinator.list()) == _GROUPS
            assert steps == [_GROUPS * steps_each]
            await coordinator.cache._drop_moved_groups(_AGENTS[:agents])
            assert steps == [_GROUPS * steps_each]
            await coordinator.cache._drop_moved_groups([])
            assert steps == [2 * _GROUPS * steps_each]
            assert len(coordinator.cache) == _GROUPS

    asyncio.run(scenario())
