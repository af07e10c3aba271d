"""A group that is exchanged for one of the other protocol while the catalog is slow, or before a failover."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
import pytest

from agent.groups.classic.group import ClassicGroup
from agent.groups.classic.messages import (
    ClassicGroupState,
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    MemberProtocol,
    SyncRequest,
)
from agent.groups.classic.snapshot import decode_classic_group
from agent.groups.consumer.group import ConsumerGroup
from agent.groups.consumer.messages import ConsumerHeartbeat
from agent.groups.errors import ErrorCode, GroupError
from catalog.errors import CatalogUnavailableError
from tests.agent.groups.coordinators import coordinating
from tests.agent.groups.mixed_stage import subscription

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator
    from uuid import UUID

    from agent.groups.coordinator import GroupCoordinator
    from catalog.groups.repository import GroupListing, GroupRecord
    from catalog.open import Catalog
    from core.clock import ManualClock
    from core.ids import Ids

_TOPICS = frozenset({"granite"})


class SlowGroups:
    """The catalog's groups; saves wait while `gate` is clear, and the next `failures` of them fail."""

    def __init__(self, catalog: Catalog) -> None:
        self._groups = catalog.groups
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.saved: list[GroupRecord] = []
        self.failures = 0

    def claim(self, group_id: str, claim_id: UUID, /, *, create: bool) -> GroupRecord | None:
        return self._groups.claim(group_id, claim_id, create=create)

    def save(self, claim_id: UUID, record: GroupRecord, /) -> bool:
        self.begun.set()
        self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise CatalogUnavailableError("the catalog is away", remedy="try again", retry_after_seconds=1.0)
        self.saved.append(record)
        return self._groups.save(claim_id, record)

    def delete(self, group_id: str, claim_id: UUID, /) -> bool:
        return self._groups.delete(group_id, claim_id)

    def page(self, after: str, /, *, limit: int) -> list[GroupListing]:
        return self._groups.page(after, limit=limit)


class Agents:
    """Coordinators over one catalog, each of which takes the group over from the one before it."""

    def __init__(self, catalog: Catalog, clock: ManualClock, ids: Ids) -> None:
        catalog.topics.create("granite", 2, {})
        self.groups = SlowGroups(catalog)
        self._catalog, self._clock, self._ids = catalog, clock, ids

    @asynccontextmanager
    async def coordinating(self) -> AsyncIterator[GroupCoordinator]:
        async with coordinating(self._catalog, self._clock, self._ids, groups=self.groups) as made:
            try:
                yield made
            finally:
                self.groups.gate.set()


@pytest.fixture
def agents(catalog: Catalog, clock: ManualClock, ids: Ids) -> Iterator[Agents]:
    made = Agents(catalog, clock, ids)
    yield made
    made.groups.gate.set()


def _consumer(member_id: str, epoch: int = 0) -> ConsumerHeartbeat:
    joins = {"rebalance_timeout_ms": 30_000, "topics": _TOPICS, "owned": frozenset()}
    return ConsumerHeartbeat(member_id=member_id, member_epoch=epoch, **(joins if epoch == 0 else {}))  # type: ignore[arg-type]  # as the keys say


def _classic(member_id: str = "") -> JoinRequest:
    return JoinRequest(
        member_id=member_id,
        protocol_type="consumer",
        protocols=(MemberProtocol("range", subscription(_TOPICS)),),
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        requires_known_member_id=False,
    )


async def _code(answer: Awaitable[object]) -> ErrorCode:
    try:
        told = await answer
    except GroupError as error:
        return error.code
    return told.error if isinstance(told, JoinResponse) else ErrorCode.none


async def _begin(*calls: Awaitable[object]) -> list[asyncio.Task[ErrorCode]]:
    """Let each come to where it waits for the catalog, in this order."""
    tasks = []
    for call in calls:
        tasks.append(asyncio.create_task(_code(call)))
        for _ in range(10):
            await asyncio.sleep(0)
    return tasks


def test_a_group_that_took_the_place_of_one_being_stored_is_stored_itself(agents: Agents) -> None:
    """What the catalog has of a group that was exchanged meanwhile says nothing of the next one's members."""

    async def story() -> None:
        async with agents.coordinating() as first:
            await first.consumers.heartbeat("g", _consumer("before"))
            for _ in range(4):
                await first.join("g", _classic())
            agents.groups.gate.clear()
            calls = await _begin(
                first.join("g", _classic()),
                first.consumers.heartbeat("g", _consumer("before", -1)),
                first.consumers.heartbeat("g", _consumer("after")),
            )
            agents.groups.gate.set()
            assert await asyncio.gather(*calls) == [ErrorCode.none] * 3
            (group,) = first.cache.groups()
            async with agents.coordinating() as second:
                found = await second.cache.find("g")
                assert found is not None
                assert isinstance(found.group, ConsumerGroup)
                assert found.group.describe() == group.describe()
                assert "after" in {member.member_id for member in found.group.describe().members}

    asyncio.run(story())


def test_whoever_waits_in_a_group_that_is_exchanged_comes_again_to_the_same_coordinator(
    agents: Agents,
) -> None:
    """Nobody is sent to look for another one."""

    async def story() -> None:
        async with agents.coordinating() as coordinator:
            for member_id in ("first", "second"):
                await coordinator.consumers.heartbeat("g", _consumer(member_id))
            await coordinator.join("g", _classic())
            agents.groups.gate.clear()
            agents.groups.begun.clear()
            calls = await _begin(
                coordinator.join("g", _classic()),
                coordinator.join("g", _classic()),
                coordinator.consumers.heartbeat("g", _consumer("first", -1)),
                coordinator.consumers.heartbeat("g", _consumer("second", -1)),
            )
            await asyncio.to_thread(agents.groups.begun.wait)
            agents.groups.gate.set()
            assert await asyncio.gather(*calls) == [
                ErrorCode.none,  # it was being stored
                ErrorCode.rebalance_in_progress,
                ErrorCode.coordinator_load_in_progress,
                ErrorCode.none,
            ]
            (group,) = coordinator.cache.groups()
            assert isinstance(group, ClassicGroup)
            assert group.member_count == 3

    asyncio.run(story())


async def _shared(coordinator: GroupCoordinator) -> MemberIdentity:
    """A group of both protocols, each member with one of two partitions; gives its classic member's stamp."""
    told = await coordinator.consumers.heartbeat("g", _consumer("consumer"))
    joined = await coordinator.join("g", _classic())
    for _ in range(2):
        said = ConsumerHeartbeat(member_id="consumer", member_epoch=told.member_epoch, owned=told.assignment)
        told = await coordinator.consumers.heartbeat("g", said)
    joined = await coordinator.join("g", _classic(joined.member_id))
    stamp = MemberIdentity(member_id=joined.member_id, generation=joined.generation)
    assert await coordinator.heartbeat("g", stamp) is ErrorCode.none
    return stamp


async def _rebalanced(coordinator: GroupCoordinator, stamp: MemberIdentity) -> JoinResponse:
    answer = await coordinator.join("g", _classic(stamp.member_id))
    await coordinator.sync(
        "g",
        SyncRequest(
            member_id=stamp.member_id,
            generation=answer.generation,
            assignments={stamp.member_id: b"all of it"},
        ),
    )
    return answer


def test_who_is_left_behind_rebalances_under_the_next_coordinator_too(agents: Agents) -> None:
    """Whoever takes over a group that was to rebalance calls its members; once, and not for ever."""

    async def story() -> None:
        async with agents.coordinating() as first:
            stamp = await _shared(first)
            await first.consumers.heartbeat("g", _consumer("consumer", -1))
        async with agents.coordinating() as second:
            assert await second.heartbeat("g", stamp) is ErrorCode.rebalance_in_progress
            joined = await _rebalanced(second, stamp)
            assert joined.generation == stamp.generation + 1
        async with agents.coordinating() as third:
            stamp = MemberIdentity(member_id=stamp.member_id, generation=joined.generation)
            assert await third.heartbeat("g", stamp) is ErrorCode.none
            (group,) = third.cache.groups()
            assert group.state is ClassicGroupState.STABLE

    asyncio.run(story())


def test_a_group_that_could_not_be_stored_as_a_classic_one_is_not_one_yet(agents: Agents) -> None:
    """Whoever left is told to come again; the others go on in the group that the catalog has."""

    async def story() -> None:
        async with agents.coordinating() as first:
            stamp = await _shared(first)
            leaves = _consumer("consumer", -1)
            agents.groups.failures = 1
            assert await _code(first.consumers.heartbeat("g", leaves)) is ErrorCode.coordinator_not_available
            assert not first.cache.groups()
            assert await first.heartbeat("g", stamp) is ErrorCode.none
            assert isinstance(first.cache.groups()[0], ConsumerGroup)
            assert await _code(first.consumers.heartbeat("g", leaves)) is ErrorCode.none
        async with agents.coordinating() as second:
            assert await second.heartbeat("g", stamp) is ErrorCode.rebalance_in_progress
            assert isinstance(second.cache.groups()[0], ClassicGroup)

    asyncio.run(story())


@pytest.mark.parametrize("becomes_classic", [True, False])
def test_whoever_leaves_a_group_that_another_agent_has_claimed_is_sent_there(
    agents: Agents, *, becomes_classic: bool
) -> None:
    """The member is still in the group that the next coordinator has, whatever its leaving makes of it."""

    async def story() -> None:
        async with agents.coordinating() as first, agents.coordinating() as second:
            await _shared(first)
            if not becomes_classic:
                await first.consumers.heartbeat("g", _consumer("other"))
            await second.cache.find("g")
            leaves = _consumer("consumer", -1)
            assert await _code(first.consumers.heartbeat("g", leaves)) is ErrorCode.not_coordinator
            assert not first.cache.groups()
            (group,) = second.cache.groups()
            assert isinstance(group, ConsumerGroup)
            assert "consumer" in {member.member_id for member in group.describe().members}
            assert await _code(second.consumers.heartbeat("g", leaves)) is ErrorCode.none

    asyncio.run(story())


def test_a_generation_of_a_classic_group_that_could_not_be_stored_is_none(agents: Agents) -> None:
    """Whoever has joined it already is told so, and joins the group that the catalog has."""

    async def story() -> None:
        async with agents.coordinating() as first:
            stamp = await _shared(first)
            agents.groups.gate.clear()
            agents.groups.failures = 1
            left, joined = await _begin(
                first.consumers.heartbeat("g", _consumer("consumer", -1)),
                first.join("g", _classic(stamp.member_id)),
            )
            assert await joined is ErrorCode.none
            agents.groups.gate.set()
            assert await left is ErrorCode.coordinator_not_available
            beyond = MemberIdentity(member_id=stamp.member_id, generation=stamp.generation + 1)
            assert await _code(first.heartbeat("g", beyond)) is ErrorCode.illegal_generation
            assert (await first.join("g", _classic(stamp.member_id))).error is ErrorCode.none
            assert [each.member_count for each in first.cache.groups()] == [2]

    asyncio.run(story())


def test_a_member_that_comes_back_in_place_of_itself_need_not_rebalance(agents: Agents) -> None:
    async def story() -> None:
        async with agents.coordinating() as first:
            joins = _consumer("consumer")
            await first.consumers.heartbeat("g", replace(joins, instance_id="i"))
            joined = await first.join("g", replace(_classic(), instance_id="i"))
        async with agents.coordinating() as second:
            stamp = MemberIdentity(member_id=joined.member_id, instance_id="i", generation=joined.generation)
            assert await second.heartbeat("g", stamp) is ErrorCode.none

    asyncio.run(story())


def test_a_group_kept_by_an_older_agent_is_stable(agents: Agents) -> None:
    """What it kept says nothing of a rebalance."""

    async def story() -> None:
        async with agents.coordinating() as first:
            stamp = await _shared(first)
            await first.consumers.heartbeat("g", _consumer("consumer", -1))
            await _rebalanced(first, stamp)

    asyncio.run(story())
    kept = orjson.loads(agents.groups.saved[-1].state or b"")
    assert kept.pop("rebalance") is False
    older = decode_classic_group(replace(agents.groups.saved[-1], state=orjson.dumps(kept)))
    assert older == decode_classic_group(agents.groups.saved[-1])
    assert not older.must_rebalance
    assert older.members
