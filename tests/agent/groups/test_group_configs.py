"""Consumer groups with settings of their own: bounds, sessions, and coordinators that learn of changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.group_settings import GroupSettings
from agent.groups.consumer.messages import ConsumerHeartbeat
from catalog.config.values import GroupConfig
from catalog.errors import InvalidConfigError
from core.errors import InvalidInputError
from tests.agent.groups.consumer_stage import ConsumerStage
from tests.agent.groups.coordinators import coordinating

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
    ("config", "says"),
    [
        ({SESSION: "44999"}, "give 45000 to 60000"),
        ({SESSION: "60001"}, "give 45000 to 60000"),
        ({HEARTBEAT: "4999"}, "give 5000 to 15000"),
        ({HEARTBEAT: "15001"}, "give 5000 to 15000"),
    ],
)
def test_settings_of_a_group_stay_within_the_agents_bounds(config: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        GroupSettings().check(GroupConfig.of(config))


def test_a_session_must_be_longer_than_the_interval_of_its_heartbeats() -> None:
    """Whether the two are a group's own or the agent's."""
    settings = GroupSettings(
        group_consumer_min_session_timeout_ms=1, group_consumer_min_heartbeat_interval_ms=1
    )
    settings.check(GroupConfig.of({SESSION: "5001"}))
    for config in ({SESSION: "5000"}, {SESSION: "9000", HEARTBEAT: "9000"}):
        with pytest.raises(InvalidConfigError, match="must be greater than"):
            settings.check(GroupConfig.of(config))


def test_what_was_set_under_wider_bounds_is_cut_to_the_present_ones() -> None:
    settings = GroupSettings()
    wide = GroupConfig.of({SESSION: "600000", HEARTBEAT: "1"})
    assert (settings.session_timeout_of(wide), settings.heartbeat_interval_of(wide)) == (60_000, 5_000)


def test_bounds_that_cross_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="group_consumer_min_session_timeout_ms"):
        GroupSettings(group_consumer_min_session_timeout_ms=70_000)


def test_a_members_session_is_as_long_as_its_group_says() -> None:
    stage = ConsumerStage()
    stage.group.config = GroupConfig.of({SESSION: "60000"})
    member = stage.joined()
    stage.pass_time(59)
    member.beat()
    stage.pass_time(59)
    assert stage.group.member_count == 1
    stage.pass_time(2)
    assert stage.group.is_empty


def test_a_coordinator_learns_of_changes_made_elsewhere(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> None:
    """Members are told the new interval with a heartbeat soon after; other groups keep theirs."""
    catalog.topics.create("granite", 1, {})

    async def story() -> None:
        async with coordinating(catalog, clock, ids) as coordinator:
            told = await coordinator.consumers.heartbeat("g", _JOINS)
            assert told.heartbeat_interval_ms == 5_000
            catalog.group_configs.alter("g", lambda _: {HEARTBEAT: "7000"})
            clock.advance(coordinator.settings.topics_refresh_ms / 1000)
            beat = ConsumerHeartbeat(member_id="m", member_epoch=told.member_epoch)
            assert (await coordinator.consumers.heartbeat("g", beat)).heartbeat_interval_ms == 7_000
            assert (await coordinator.consumers.heartbeat("h", _JOINS)).heartbeat_interval_ms == 5_000

    asyncio.run(story())


def test_a_group_that_is_taken_over_has_its_settings_from_the_first_moment(
    catalog: Catalog, clock: ManualClock, ids: Ids
) -> None:
    catalog.topics.create("granite", 1, {})
    catalog.group_configs.alter("g", lambda _: {SESSION: "60000"})

    async def story() -> None:
        async with coordinating(catalog, clock, ids) as first:
            await first.consumers.heartbeat("g", _JOINS)
        async with coordinating(catalog, clock, ids) as second:
            await second.consumers.describe("g")
            (group,) = second.cache.groups()
            assert group.next_deadline == clock.monotonic() + 60

    asyncio.run(story())
