"""Conversions between the protocols while the catalog is slow, and before a change of the coordinator."""

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
from tests.agent.groups.classic_client import encode_owned_subscription
from tests.agent.groups.coordinators import open_coordinator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator
    from uuid import UUID

    from agent.groups.coordinator import GroupCoordinator
    from catalog.groups.repository import GroupListing, GroupRecord
    from catalog.open import Catalog
    from core.clock import ManualClock
    from core.ids import Ids

_TOPICS = frozenset({"granite"})


class SlowGroupTable:
    """The catalog's groups. Saves wait while `gate` is clear; the next `failures` saves fail."""

    def __init__(self, catalog: Catalog) -> None:
        self._groups = catalog.groups
        self.gate = threading.Event()
        self.gate.set()
        self.save_started = threading.Event()
        self.saved: list[GroupRecord] = []
        self.failures = 0

    def claim(self, group_id: str, claim_id: UUID, /, *, create: bool) -> GroupRecord | None:
        return self._groups.claim(group_id, claim_id, create=create)

    def save(self, claim_id: UUID, record: GroupRecord, /) -> bool:
        self.save_started.set()
        self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise CatalogUnavailableError(
                "the catalog is unavailable", remedy="try again", retry_after_seconds=1.0
            )
        self.saved.append(record)
        return self._groups.save(claim_id, record)

    def delete(self, group_id: str, claim_id: UUID, /) -> bool:
        return self._groups.delete(group_id, claim_id)

    def page(self, after: str, /, *, limit: int) -> list[GroupListing]:
        return self._groups.page(after, limit=limit)


class Agents:
    """Coordinators over one catalog. Each takes over the group of the previous one."""

    def __init__(self, catalog: Catalog, clock: ManualClock, ids: Ids) -> None:
        catalog.topics.create("granite", 2, {})
        self.groups = SlowGroupTable(catalog)
        self._catalog, self._clock, self._ids = catalog, clock, ids

    @asynccontextmanager
    async def open_coordinator(self) -> AsyncIterator[GroupCoordinator]:
        async with open_coordinator(self._catalog, self._clock, self._ids, groups=self.groups) as made:
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
        protocols=(MemberProtocol("range", encode_owned_subscription(_TOPICS)),),
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        requires_known_member_id=False,
    )


async def _error_code(request: Awaitable[object]) -> ErrorCode:
    try:
        response = await request
    except GroupError as error:
        return error.code
    return response.error if isinstance(response, JoinResponse) else ErrorCode.none


async def _start(*calls: Awaitable[object]) -> list[asyncio.Task[ErrorCode]]:
    """Start requests in order; each waits for the catalog before the next one starts."""
    tasks = []
    for call in calls:
        tasks.append(asyncio.create_task(_error_code(call)))
        for _ in range(10):
            await asyncio.sleep(0)
    return tasks


def test_group_is_stored_again_after_a_conversion_during_a_write(agents: Agents) -> None:
    """The stored version of the old group says nothing about the new one."""

    async def scenario() -> None:
        async with agents.open_coordinator() as first:
            await first.consumers.heartbeat("g", _consumer("before"))
            for _ in range(4):
                await first.join("g", _classic())
            agents.groups.gate.clear()
            calls = await _start(
                first.join("g", _classic()),
                first.consumers.heartbeat("g", _consumer("before", -1)),
                first.consumers.heartbeat("g", _consumer("after")),
            )
            agents.groups.gate.set()
            assert await asyncio.gather(*calls) == [ErrorCode.none] * 3
            (group,) = first.cache.groups()
            async with agents.open_coordinator() as second:
                found = await second.cache.find("g")
                assert found is not None
                assert isinstance(found.group, ConsumerGroup)
                assert found.group.describe() == group.describe()
                assert "after" in {member.member_id for member in found.group.describe().members}

    asyncio.run(scenario())


def test_pending_requests_of_a_converted_group_are_retried_at_the_same_coordinator(
    agents: Agents,
) -> None:
    """No error code sends a client to look for another coordinator."""

    async def scenario() -> None:
        async with agents.open_coordinator() as coordinator:
            for member_id in ("first", "second"):
                await coordinator.consumers.heartbeat("g", _consumer(member_id))
            await coordinator.join("g", _classic())
            agents.groups.gate.clear()
            agents.groups.save_started.clear()
            calls = await _start(
                coordinator.join("g", _classic()),
                coordinator.join("g", _classic()),
                coordinator.consumers.heartbeat("g", _consumer("first", -1)),
                coordinator.consumers.heartbeat("g", _consumer("second", -1)),
            )
            await asyncio.to_thread(agents.groups.save_started.wait)
            agents.groups.gate.set()
            assert await asyncio.gather(*calls) == [
                ErrorCode.none,  # its state was already being stored
                ErrorCode.rebalance_in_progress,
                ErrorCode.coordinator_load_in_progress,
                ErrorCode.none,
            ]
            (group,) = coordinator.cache.groups()
            assert isinstance(group, ClassicGroup)
            assert group.member_count == 3

    asyncio.run(scenario())


async def _join_both_protocols(coordinator: GroupCoordinator) -> MemberIdentity:
    """Create a group with one member of each protocol; return the identity of the classic one."""
    response = await coordinator.consumers.heartbeat("g", _consumer("consumer"))
    joined = await coordinator.join("g", _classic())
    for _ in range(2):
        heartbeat = ConsumerHeartbeat(
            member_id="consumer", member_epoch=response.member_epoch, owned=response.assignment
        )
        response = await coordinator.consumers.heartbeat("g", heartbeat)
    joined = await coordinator.join("g", _classic(joined.member_id))
    identity = MemberIdentity(member_id=joined.member_id, generation=joined.generation)
    assert await coordinator.heartbeat("g", identity) is ErrorCode.none
    return identity


async def _rebalance(coordinator: GroupCoordinator, identity: MemberIdentity) -> JoinResponse:
    response = await coordinator.join("g", _classic(identity.member_id))
    await coordinator.sync(
        "g",
        SyncRequest(
            member_id=identity.member_id,
            generation=response.generation,
            assignments={identity.member_id: b"all of it"},
        ),
    )
    return response


def test_new_coordinator_starts_the_rebalance_that_a_downgrade_requires(agents: Agents) -> None:
    """It does so once."""

    async def scenario() -> None:
        async with agents.open_coordinator() as first:
            identity = await _join_both_protocols(first)
            await first.consumers.heartbeat("g", _consumer("consumer", -1))
        async with agents.open_coordinator() as second:
            assert await second.heartbeat("g", identity) is ErrorCode.rebalance_in_progress
            joined = await _rebalance(second, identity)
            assert joined.generation == identity.generation + 1
        async with agents.open_coordinator() as third:
            identity = MemberIdentity(member_id=identity.member_id, generation=joined.generation)
            assert await third.heartbeat("g", identity) is ErrorCode.none
            (group,) = third.cache.groups()
            assert group.state is ClassicGroupState.STABLE

    asyncio.run(scenario())


def test_a_member_of_a_group_that_does_not_exist_joins_again(agents: Agents) -> None:
    """A failover has lost the group, or its upgrade. GROUP_ID_NOT_FOUND is fatal to clients."""

    async def scenario() -> None:
        async with agents.open_coordinator() as coordinator:
            beat = coordinator.consumers.heartbeat
            assert await _error_code(beat("g", _consumer("m", 3))) is ErrorCode.unknown_member_id
            assert await _error_code(beat("g", _consumer("m", -1))) is ErrorCode.group_id_not_found
            assert not coordinator.cache.groups()
            (joins,) = await _start(coordinator.join("g", _classic()))
            assert await _error_code(beat("g", _consumer("m", 3))) is ErrorCode.unknown_member_id
            assert isinstance(coordinator.cache.groups()[0], ClassicGroup)
            assert await _error_code(beat("g", _consumer("m"))) is ErrorCode.none
            assert isinstance(coordinator.cache.groups()[0], ConsumerGroup)
            assert await joins is ErrorCode.rebalance_in_progress

    asyncio.run(scenario())


def test_downgrade_that_cannot_be_stored_is_undone(agents: Agents) -> None:
    """The leaving member retries, and the others continue in the stored group."""

    async def scenario() -> None:
        async with agents.open_coordinator() as first:
            identity = await _join_both_protocols(first)
            leaves = _consumer("consumer", -1)
            agents.groups.failures = 1
            assert (
                await _error_code(first.consumers.heartbeat("g", leaves))
                is ErrorCode.coordinator_not_available
            )
            assert not first.cache.groups()
            assert await first.heartbeat("g", identity) is ErrorCode.none
            assert isinstance(first.cache.groups()[0], ConsumerGroup)
            assert await _error_code(first.consumers.heartbeat("g", leaves)) is ErrorCode.none
        async with agents.open_coordinator() as second:
            assert await second.heartbeat("g", identity) is ErrorCode.rebalance_in_progress
            assert isinstance(second.cache.groups()[0], ClassicGroup)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_downgraded", [True, False])
def test_leave_is_refused_if_another_agent_has_claimed_the_group(
    agents: Agents, *, is_downgraded: bool
) -> None:
    """The member is still in the group of the other coordinator."""

    async def scenario() -> None:
        async with agents.open_coordinator() as first, agents.open_coordinator() as second:
            await _join_both_protocols(first)
            if not is_downgraded:
                await first.consumers.heartbeat("g", _consumer("other"))
            await second.cache.find("g")
            leaves = _consumer("consumer", -1)
            assert await _error_code(first.consumers.heartbeat("g", leaves)) is ErrorCode.not_coordinator
            assert not first.cache.groups()
            (group,) = second.cache.groups()
            assert isinstance(group, ConsumerGroup)
            assert "consumer" in {member.member_id for member in group.describe().members}
            assert await _error_code(second.consumers.heartbeat("g", leaves)) is ErrorCode.none

    asyncio.run(scenario())


def test_generation_after_a_downgrade_that_cannot_be_stored_is_invalid(agents: Agents) -> None:
    """A member that has joined it gets ILLEGAL_GENERATION and joins the stored group."""

    async def scenario() -> None:
        async with agents.open_coordinator() as first:
            identity = await _join_both_protocols(first)
            agents.groups.gate.clear()
            agents.groups.failures = 1
            left, joined = await _start(
                first.consumers.heartbeat("g", _consumer("consumer", -1)),
                first.join("g", _classic(identity.member_id)),
            )
            assert await joined is ErrorCode.none
            agents.groups.gate.set()
            assert await left is ErrorCode.coordinator_not_available
            beyond = MemberIdentity(member_id=identity.member_id, generation=identity.generation + 1)
            assert await _error_code(first.heartbeat("g", beyond)) is ErrorCode.illegal_generation
            assert (await first.join("g", _classic(identity.member_id))).error is ErrorCode.none
            assert [each.member_count for each in first.cache.groups()] == [2]

    asyncio.run(scenario())


def test_downgrade_by_a_rejoining_static_member_needs_no_rebalance(agents: Agents) -> None:
    async def scenario() -> None:
        async with agents.open_coordinator() as first:
            joins = _consumer("consumer")
            await first.consumers.heartbeat("g", replace(joins, instance_id="i"))
            joined = await first.join("g", replace(_classic(), instance_id="i"))
        async with agents.open_coordinator() as second:
            identity = MemberIdentity(
                member_id=joined.member_id, instance_id="i", generation=joined.generation
            )
            assert await second.heartbeat("g", identity) is ErrorCode.none

    asyncio.run(scenario())


def test_snapshot_without_a_rebalance_flag_is_stable(agents: Agents) -> None:
    """Agents of older versions store no such flag."""

    async def scenario() -> None:
        async with agents.open_coordinator() as first:
            identity = await _join_both_protocols(first)
            await first.consumers.heartbeat("g", _consumer("consumer", -1))
            await _rebalance(first, identity)

    asyncio.run(scenario())
    state = orjson.loads(agents.groups.saved[-1].state or b"")
    assert state.pop("rebalance") is False
    older = decode_classic_group(replace(agents.groups.saved[-1], state=orjson.dumps(state)))
    assert older == decode_classic_group(agents.groups.saved[-1])
    assert not older.must_rebalance
    assert older.members
