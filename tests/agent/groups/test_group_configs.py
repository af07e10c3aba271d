"""Configurations of single consumer groups: bounds, sessions, and changes by other agents."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.group_settings import GroupSettings
from agent.groups.consumer.messages import ConsumerHeartbeat
from catalog.config.values import GroupConfig
from catalog.errors import InvalidConfigError
from core.errors import InvalidInputError
from tests.agent.groups.consumer_harness import ConsumerHarness
from tests.agent.groups.coordinators import open_coordinator

if TYPE_CHECKING:
    from catalog.open import Catalog
    from core.clock import ManualClock
    from core.ids import Ids

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
_JOINS = ConsumerHeartbeat(
    member_id="m",
    member_epoch=0,
    rebalance_timeout_ms=30_000,
    topics=frozenset({"granite"}),
    owned=frozenset(),
)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({SESSION: "44999"}, "give 45000 to 60000"),
        ({SESSION: "60001"}, "give 45000 to 60000"),
        ({HEARTBEAT: "4999"}, "give 5000 to 15000"),
        ({HEARTBEAT: "15001"}, "give 5000 to 15000"),
    ],
)
def test_group_configuration_is_bounded_by_the_agent_settings(config: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        GroupSettings().check(GroupConfig.of(config))


def test_session_timeout_must_exceed_the_heartbeat_interval() -> None:
    """This holds for values of the group and for defaults of the agent."""
    settings = GroupSettings(
        group_consumer_min_session_timeout_ms=1, group_consumer_min_heartbeat_interval_ms=1
    )
    settings.check(GroupConfig.of({SESSION: "5001"}))
    for config in ({SESSION: "5000"}, {SESSION: "9000", HEARTBEAT: "9000"}):
        with pytest.raises(InvalidConfigError, match="must be greater than"):
            settings.check(GroupConfig.of(config))


def test_values_outside_the_present_bounds_are_clamped() -> None:
    settings = GroupSettings()
    wide = GroupConfig.of({SESSION: "600000", HEARTBEAT: "1"})
    assert (settings.session_timeout_of(wide), settings.heartbeat_interval_of(wide)) == (60_000, 5_000)


def test_minimum_above_the_maximum_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="group_consumer_min_session_timeout_ms"):
        GroupSettings(group_consumer_min_session_timeout_ms=70_000)


def test_session_timeout_of_the_group_configuration_is_used() -> None:
    harness = ConsumerHarness()
    harness.group.config = GroupConfig.of({SESSION: "60000"})
    member = harness.join_client()
    harness.advance(59)
    member.heartbeat()
    harness.advance(59)
    assert harness.group.member_count == 1
    harness.advance(2)
    assert harness.group.is_empty


def test_coordinator_notices_changes_by_other_agents(catalog: Catalog, clock: ManualClock, ids: Ids) -> None:
    """Members get the new interval with a later heartbeat; other groups keep theirs."""
    catalog.topics.create("granite", 1, {})

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids) as coordinator:
            joined = await coordinator.consumers.heartbeat("g", _JOINS)
            assert joined.heartbeat_interval_ms == 5_000
            catalog.group_configs.alter("g", lambda _: {HEARTBEAT: "7000"})
            clock.advance(coordinator.settings.topics_refresh_ms / 1000)
            heartbeat = ConsumerHeartbeat(member_id="m", member_epoch=joined.member_epoch)
            assert (await coordinator.consumers.heartbeat("g", heartbeat)).heartbeat_interval_ms == 7_000
            assert (await coordinator.consumers.heartbeat("h", _JOINS)).heartbeat_interval_ms == 5_000

    asyncio.run(scenario())


def test_new_coordinator_loads_a_group_with_its_configuration(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> None:
    catalog.topics.create("granite", 1, {})
    catalog.group_configs.alter("g", lambda _: {SESSION: "60000"})

    async def scenario() -> None:
        async with open_coordinator(catalog, clock, ids) as first:
            await first.consumers.heartbeat("g", _JOINS)
        async with open_coordinator(catalog, clock, ids) as second:
            await second.consumers.describe("g")
            (group,) = second.cache.groups()
            assert group.next_deadline == clock.monotonic() + 60

    asyncio.run(scenario())
