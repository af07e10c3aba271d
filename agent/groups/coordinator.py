"""The group coordinator: what members, consumers without a group and administrators ask of it.

Errors are `KafkaError`s with the code that Kafka's coordinator would give.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from agent.groups.cache.cached_group import GroupTable
from agent.groups.cache.group_cache import CachedGroups
from agent.groups.classic.group import ClassicGroup, GroupDescription
from agent.groups.consumer.configs import GroupConfigViews
from agent.groups.consumer.coordinator import ConsumerGroups
from agent.groups.consumer.group import ConsumerGroup
from agent.groups.consumer.topics import TopicViews
from agent.groups.expiry import ExpiringOffsets, OffsetExpiry
from agent.groups.messages import GroupState, JoinAnswer
from agent.kafka.errors import ErrorCode, KafkaError
from catalog.groups.offsets import CommitOutcome
from catalog.groups.repository import GroupType
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from agent.group_settings import GroupSettings
    from agent.groups.cache.cached_group import Brokers, CachedGroup
    from agent.groups.messages import (
        JoinRequest,
        LeavingMember,
        MemberStamp,
        SyncAnswer,
        SyncRequest,
    )
    from agent.runtime.work_pool import WorkPool
    from catalog.config.group_config import GroupConfig
    from catalog.groups.offsets import CommittedOffset, OffsetCommit
    from catalog.groups.repository import GroupListing
    from catalog.model import Topic
    from core.clock import Clock
    from core.ids import Ids

T = TypeVar("T")
_PAGE = 1000
_GROUPS_AT_ONCE = 100  # with all that they have committed


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A group in a list; `state` is the name that Kafka's tools show."""

    group_id: str
    group_type: GroupType
    state: str
    protocol_type: str


class Groups(GroupTable, Protocol):
    """What the coordinator needs of the catalog's groups; blocks."""

    def delete(self, group_id: str, claim_id: UUID, /) -> bool:
        """Forget a group and its offsets, unless the claim was lost."""
        ...

    def page(self, after: str, /, *, limit: int) -> list[GroupListing]:
        """Groups by name."""
        ...


class Offsets(ExpiringOffsets, Protocol):
    """What the coordinator needs of the catalog's committed offsets; blocks."""

    def commit(
        self,
        group_id: str,
        claim_id: UUID,
        generation: int | None,
        offsets: Sequence[CommittedOffset],
        /,
        *,
        keep_ms: int | None,
    ) -> OffsetCommit:
        """Note where a group is."""
        ...

    def fetch(self, wanted: Sequence[tuple[str, PartitionId]], /) -> list[tuple[str, CommittedOffset]]:
        """Where groups are in these partitions."""
        ...

    def fetch_all(self, group_ids: Sequence[str], /) -> dict[str, list[tuple[str, CommittedOffset]]]:
        """Where groups are, everywhere."""
        ...

    def delete(self, group_id: str, claim_id: UUID, partitions: Sequence[PartitionId], /) -> bool:
        """Forget where a group is, unless the claim was lost."""
        ...


class TopicList(Protocol):
    """What the coordinator needs of the catalog's topics; blocks."""

    def list(self) -> list[Topic]:
        """All topics."""
        ...


class ConfigList(Protocol):
    """What the coordinator needs of the catalog's settings of groups; blocks."""

    def list(self) -> dict[str, GroupConfig]:
        """The groups that have settings of their own."""
        ...


class GroupCoordinator:
    """The coordinator of this agent's share of the groups. Belongs to the event loop."""

    def __init__(
        self,
        *,
        groups: Groups,
        offsets: Offsets,
        topics: TopicList,
        configs: ConfigList,
        brokers: Brokers,
        pool: WorkPool,
        clock: Clock,
        ids: Ids,
        settings: GroupSettings,
    ) -> None:
        self.settings = settings
        refresh_ms = settings.topics_refresh_ms
        group_configs = GroupConfigViews(
            lambda: self.held.call(configs.list), clock=clock, refresh_ms=refresh_ms
        )
        self.held = CachedGroups(
            table=groups,
            brokers=brokers,
            pool=pool,
            clock=clock,
            ids=ids,
            settings=settings,
            configs=group_configs,
        )
        views = TopicViews(topics.list, call=self.held.call, clock=clock, refresh_ms=refresh_ms)
        self.consumers = ConsumerGroups(self.held, views, group_configs, clock)
        self._groups = groups
        self._offsets = offsets
        self._expiry = OffsetExpiry(self, offsets, pool=pool, ids=ids)

    def start(self) -> None:
        """Coordinate from now on."""
        self.held.start()
        self._expiry.start()

    def release(self) -> None:
        """Take nothing new; whoever waits is sent to look for the next coordinator."""
        self.held.release()

    async def stop(self) -> None:
        """Stop; what is being written is written."""
        await self._expiry.stop()
        await self.held.stop()

    # Members

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        """A member's place in the next generation; waits until that begins."""
        _require_name(group_id)
        least, most = self.settings.group_min_session_timeout_ms, self.settings.group_max_session_timeout_ms
        if not least <= request.session_timeout_ms <= most:
            raise KafkaError(ErrorCode.invalid_session_timeout, f"allowed are {least} to {most} ms")
        if "\0" in request.protocol_type:
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        held = await self._find(group_id, ErrorCode.unknown_member_id, create=not request.member_id)
        group = held.group
        if isinstance(group, ConsumerGroup):
            if not group.is_empty:
                return await self.consumers.join(group_id, request)
            if request.member_id:
                return JoinAnswer(error=ErrorCode.unknown_member_id, member_id=request.member_id)
            group = self.consumers.empty_to_classic(held)
        answer: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        group.join(request, partial(_settle, answer))
        self.held.moved(held)
        return await answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """A member's assignment; waits until the leader has brought it."""
        _require_name(group_id)
        held = await self._find(group_id, ErrorCode.unknown_member_id)
        if isinstance(held.group, ConsumerGroup):
            given = held.group.sync(request)
            self.held.moved(held)
            return given
        answer: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        held.group.sync(request, partial(_settle, answer))
        self.held.moved(held)
        return await answer

    async def heartbeat(self, group_id: str, stamp: MemberStamp) -> ErrorCode:
        """Keep a member's session."""
        _require_name(group_id)
        held = await self._find(group_id, ErrorCode.unknown_member_id)
        group = held.group
        code = group.beat(stamp) if isinstance(group, ConsumerGroup) else group.heartbeat(stamp)
        self.held.moved(held)
        return code

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Let members go; an error for each, in order."""
        _require_name(group_id)
        held = await self.held.find(group_id)
        if held is None:
            return [ErrorCode.unknown_member_id] * len(leaving)
        if isinstance(held.group, ConsumerGroup):
            return await self.consumers.leave(held, leaving)
        errors = held.group.leave(leaving)
        self.held.moved(held)
        return errors

    # Offsets

    async def commit(
        self,
        group_id: str,
        stamp: MemberStamp,
        offsets: Sequence[CommittedOffset],
        *,
        keep_ms: int | None = None,
        knows_epochs: bool = True,
    ) -> list[ErrorCode]:
        """Note where a group is; an error for each offset. A group's commits are written as they came.

        `knows_epochs` tells whether the request is one that members of consumer groups use (version 9 on).
        Topics that were deleted have UNKNOWN_TOPIC_OR_PARTITION. Raises where all are refused by the group.
        """
        without_members = stamp.generation < 0
        missing = ErrorCode.group_id_not_found if knows_epochs else ErrorCode.illegal_generation
        held = await self._find(group_id, missing, create=without_members)
        async with held.writing:
            codes = self._check_commit(held, stamp, offsets, knows_epochs=knows_epochs)
            if ErrorCode.none not in codes:
                self.held.counts.offset_commits_refused += 1
                raise KafkaError(codes[0])
            taken = [each for each, code in zip(offsets, codes, strict=False) if code is ErrorCode.none]
            # Epochs of consumer groups were compared by the only one who may raise them under this claim.
            by_generation = not without_members and isinstance(held.group, ClassicGroup)
            generation = stamp.generation if by_generation else None
            outcome, gone = await self.held.write(
                held,
                partial(self._offsets.commit, group_id, held.claim_id, generation, taken, keep_ms=keep_ms),
            )
        if outcome is not CommitOutcome.COMMITTED:
            self.held.counts.offset_commits_refused += 1
        if outcome is CommitOutcome.STALE_GENERATION:
            raise KafkaError(ErrorCode.illegal_generation)
        self._require_claim(held, kept=outcome is CommitOutcome.COMMITTED)
        self.held.counts.offset_commits += 1
        return [
            ErrorCode.unknown_topic_or_partition if code is ErrorCode.none and each.topic_id in gone else code
            for each, code in zip(offsets, codes, strict=False)
        ]

    def _check_commit(
        self, held: CachedGroup, stamp: MemberStamp, offsets: Sequence[CommittedOffset], *, knows_epochs: bool
    ) -> list[ErrorCode]:
        """An error for each offset, and one in any case."""
        if isinstance(held.group, ConsumerGroup):
            return held.group.check_commits(
                stamp.member_id,
                stamp.generation,
                [PartitionId(each.topic_id, each.partition) for each in offsets],
                knows_epochs=knows_epochs,
            )
        code = held.group.check_commit(stamp)
        self.held.moved(held)
        return [code] * max(1, len(offsets))

    async def check_fetch(self, group_id: str, member_id: str | None = None, epoch: int = -1) -> None:
        """Raise unless it may be asked here where the group is, by a member of it with this epoch, if any."""
        await self.held.require_own(group_id)
        if member_id is None and epoch < 0:
            return
        held = await self.held.find(group_id)
        if held is not None and isinstance(held.group, ConsumerGroup):
            code = held.group.check_fetch(member_id, epoch)
            if code is not ErrorCode.none:
                raise KafkaError(code)

    async def fetch(
        self, wanted: Sequence[tuple[str, PartitionId]]
    ) -> dict[tuple[str, PartitionId], CommittedOffset]:
        """Where groups that `check_fetch` let pass are, as far as they have committed anything."""
        found = await self.held.call(partial(self._offsets.fetch, wanted))
        return {(group_id, PartitionId(each.topic_id, each.partition)): each for group_id, each in found}

    async def fetch_all(self, group_ids: Sequence[str]) -> dict[str, list[tuple[str, CommittedOffset]]]:
        """Where groups that `check_fetch` let pass are, everywhere, with the topics' names."""
        found = {}
        for start in range(0, len(group_ids), _GROUPS_AT_ONCE):
            some = group_ids[start : start + _GROUPS_AT_ONCE]
            found.update(await self.held.call(partial(self._offsets.fetch_all, some)))
        return found

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, PartitionId]]
    ) -> list[ErrorCode]:
        """Forget where a group is in these partitions, given with their topics' names; an error for each."""
        _require_name(group_id)
        held = await self._find(group_id, ErrorCode.group_id_not_found)
        async with held.writing:
            code = held.group.check_delete_offsets()
            if code is not ErrorCode.none:
                raise KafkaError(code)
            in_use = [held.group.is_subscribed(topic) for topic, _ in partitions]
            unused = [each for (_, each), used in zip(partitions, in_use, strict=True) if not used]
            done = await self.held.write(held, partial(self._offsets.delete, group_id, held.claim_id, unused))
        self._require_claim(held, kept=done)
        return [ErrorCode.group_subscribed_to_topic if used else ErrorCode.none for used in in_use]

    # Administration

    async def describe(self, group_id: str) -> GroupDescription:
        """A classic group with its members; raises GROUP_ID_NOT_FOUND when there is none."""
        held = await self.held.find(group_id)
        if held is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        if isinstance(held.group, ConsumerGroup):
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} is not a classic group.")
        return held.group.describe()

    async def list(self) -> list[ListedGroup]:
        """The groups that this agent coordinates."""
        found: list[ListedGroup] = []
        after = ""
        while page := await self.held.call(partial(self._groups.page, after, limit=_PAGE)):
            found += [self._listed(each) for each in page if await self.held.is_own(each.group_id)]
            after = page[-1].group_id
        return found

    def _listed(self, listing: GroupListing) -> ListedGroup:
        group = self.held.peek(listing.group_id)
        if group is None:  # states of groups that nobody asked for lately: "Stable" in both protocols
            state = GroupState.STABLE if listing.member_count else GroupState.EMPTY
            group_type, protocol_type = listing.group_type, listing.protocol_type or ""
            return ListedGroup(
                group_id=listing.group_id, group_type=group_type, state=state, protocol_type=protocol_type
            )
        is_classic = isinstance(group, ClassicGroup)
        return ListedGroup(
            group_id=group.group_id,
            group_type=GroupType.CLASSIC if is_classic else GroupType.CONSUMER,
            state=group.state.value,
            protocol_type=group.protocol_type or "",
        )

    async def delete(self, group_id: str) -> None:
        """Forget a group without members, and its offsets."""
        held = await self._find(group_id, ErrorCode.group_id_not_found)
        async with held.writing:
            code = held.group.check_delete()
            if code is not ErrorCode.none:
                raise KafkaError(code)
            done = await self.held.write(held, partial(self._groups.delete, group_id, held.claim_id))
        self.held.drop(held, ErrorCode.coordinator_not_available)
        self._require_claim(held, kept=done)

    async def _find(self, group_id: str, otherwise: ErrorCode, *, create: bool = False) -> CachedGroup:
        held = await self.held.find(group_id, create=create)
        if held is None:
            raise KafkaError(otherwise, f"there is no group {group_id!r}")
        return held

    def _require_claim(self, held: CachedGroup, *, kept: bool) -> None:
        if not kept:
            self.held.drop(held, ErrorCode.not_coordinator)
            raise KafkaError(ErrorCode.not_coordinator, "another agent has claimed the group")


def _require_name(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.invalid_group_id, "a group must have a name")


def _settle(future: asyncio.Future[T], answer: T) -> None:
    """Answer a request, unless whoever asked is gone."""
    if not future.done():
        future.set_result(answer)
