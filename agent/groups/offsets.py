"""Committed offsets of groups: commit, fetch and delete."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.groups.classic.group import ClassicGroup
from agent.groups.consumer.group import ConsumerGroup
from agent.groups.errors import ErrorCode, GroupError
from agent.groups.ownership import require_group_id
from catalog.groups.names import check_group_name
from catalog.groups.offsets import CommitOutcome
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from agent.groups.cache.cached_group import CachedGroup
    from agent.groups.cache.group_cache import GroupCache
    from agent.groups.classic.messages import MemberIdentity
    from agent.groups.interfaces import OffsetTable
    from agent.groups.ownership import GroupOwnership
    from catalog.groups.offsets import CommittedOffset, OffsetCommit

    TransactionalCommit = Callable[[tuple[str, UUID, int | None], Sequence[CommittedOffset]], OffsetCommit]

_MAX_GROUPS_PER_FETCH = 100  # all offsets of these groups are in memory together


class GroupOffsets:
    """Offset requests to the groups of this agent. Belongs to the event loop."""

    def __init__(self, *, cache: GroupCache, ownership: GroupOwnership, table: OffsetTable) -> None:
        self._cache = cache
        self._ownership = ownership
        self._table = table

    async def commit(
        self,
        group_id: str,
        identity: MemberIdentity,
        offsets: Sequence[CommittedOffset],
        *,
        retention_ms: int | None = None,
        supports_member_epochs: bool = True,
        in_transaction: TransactionalCommit | None = None,
    ) -> list[ErrorCode]:
        """Store offsets; return an error code for each. The commits of a group are stored in order.

        `supports_member_epochs` is True from version 9 of OffsetCommit, the first version for members of the
        consumer protocol. Offsets of deleted topics get UNKNOWN_TOPIC_OR_PARTITION. Raises GroupError if the
        group rejects all offsets. With `in_transaction`, that function stores them. A transactional producer
        need not name the member for which it commits.
        """
        is_member = identity.generation >= 0
        missing = ErrorCode.illegal_generation
        if supports_member_epochs and in_transaction is None:
            missing = ErrorCode.group_id_not_found
        cached = await self._cache.require(group_id, missing, create=not is_member)
        async with cached.write_lock:
            codes = self._check_commit(
                cached,
                identity,
                offsets,
                supports_member_epochs=supports_member_epochs,
                is_transactional=in_transaction is not None,
            )
            if ErrorCode.none not in codes:
                self._cache.counters.offset_commits_rejected += 1
                raise GroupError(codes[0])
            accepted = [each for each, code in zip(offsets, codes, strict=False) if code is ErrorCode.none]
            # The check above suffices for member epochs: under this claim only this agent can raise them.
            checks_generation = is_member and isinstance(cached.group, ClassicGroup)
            generation = identity.generation if checks_generation else None
            if in_transaction is None:
                store = partial(
                    self._table.commit,
                    group_id,
                    cached.claim_id,
                    generation,
                    accepted,
                    retention_ms=retention_ms,
                )
            else:
                store = partial(in_transaction, (group_id, cached.claim_id, generation), accepted)
            outcome, deleted_topics = await self._cache.store.write(cached, store)
        if outcome is not CommitOutcome.COMMITTED:
            self._cache.counters.offset_commits_rejected += 1
        if outcome is CommitOutcome.STALE_GENERATION:
            raise GroupError(ErrorCode.illegal_generation)
        self._cache.require_claim(cached, kept=outcome is CommitOutcome.COMMITTED)
        self._cache.counters.offset_commits += 1
        return [
            ErrorCode.unknown_topic_or_partition
            if code is ErrorCode.none and each.topic_id in deleted_topics
            else code
            for each, code in zip(offsets, codes, strict=False)
        ]

    def _check_commit(
        self,
        cached: CachedGroup,
        identity: MemberIdentity,
        offsets: Sequence[CommittedOffset],
        *,
        supports_member_epochs: bool,
        is_transactional: bool,
    ) -> list[ErrorCode]:
        """Return an error code for each offset, or one code if there are no offsets."""
        is_anonymous = identity.generation < 0 and not identity.member_id and identity.instance_id is None
        if is_transactional and is_anonymous:
            return [ErrorCode.none] * max(1, len(offsets))
        if isinstance(cached.group, ConsumerGroup):
            codes = cached.group.check_commit(
                identity.member_id,
                identity.generation,
                [PartitionId(each.topic_id, each.partition) for each in offsets],
                supports_member_epochs=supports_member_epochs,
            )
            if is_transactional and ErrorCode.stale_member_epoch in codes:
                # As in Kafka: it is fatal to a producer, which can abort after ILLEGAL_GENERATION.
                return [ErrorCode.illegal_generation] * len(codes)
            return codes
        code = cached.group.check_commit(identity, is_transactional=is_transactional)
        self._cache.after_change(cached)
        return [code] * max(1, len(offsets))

    async def check_fetch(self, group_id: str, member_id: str | None = None, epoch: int = -1) -> None:
        """Raise GroupError if the member may not fetch offsets, InvalidGroupError for a bad id.

        A member id and an epoch are checked for consumer groups only; clients that are no members omit them.
        Only the coordinator can check them. Other agents accept them, because the catalog has all committed
        offsets: librdkafka never repeats this request after NOT_COORDINATOR.
        """
        check_group_name(group_id)
        if member_id is None and epoch < 0:
            return
        try:
            await self._ownership.require_own(group_id)
            cached = await self._cache.find(group_id)
        except GroupError as error:
            if error.code is ErrorCode.not_coordinator:
                return
            raise
        if cached is not None and isinstance(cached.group, ConsumerGroup):
            code = cached.group.check_fetch(member_id, epoch)
            if code is not ErrorCode.none:
                raise GroupError(code)

    async def fetch(
        self, wanted: Sequence[tuple[str, PartitionId]]
    ) -> dict[tuple[str, PartitionId], CommittedOffset]:
        """Return the committed offsets of groups that `check_fetch` has accepted."""
        found = await self._cache.store.call(partial(self._table.fetch, wanted))
        return {(group_id, PartitionId(each.topic_id, each.partition)): each for group_id, each in found}

    async def fetch_all(self, group_ids: Sequence[str]) -> dict[str, list[tuple[str, CommittedOffset]]]:
        """Return all committed offsets of groups that `check_fetch` has accepted, with topic names."""
        found = {}
        for start in range(0, len(group_ids), _MAX_GROUPS_PER_FETCH):
            some = group_ids[start : start + _MAX_GROUPS_PER_FETCH]
            found.update(await self._cache.store.call(partial(self._table.fetch_all, some)))
        return found

    async def delete(self, group_id: str, partitions: Sequence[tuple[str, PartitionId]]) -> list[ErrorCode]:
        """Delete offsets in partitions, given with topic names; return an error code for each."""
        require_group_id(group_id)
        cached = await self._cache.require(group_id, ErrorCode.group_id_not_found)
        async with cached.write_lock:
            code = cached.group.check_delete_offsets()
            if code is not ErrorCode.none:
                raise GroupError(code)
            in_use = [cached.group.is_subscribed(topic) for topic, _ in partitions]
            unused = [each for (_, each), used in zip(partitions, in_use, strict=True) if not used]
            kept = await self._cache.store.write(
                cached, partial(self._table.delete, group_id, cached.claim_id, unused)
            )
        self._cache.require_claim(cached, kept=kept)
        return [ErrorCode.group_subscribed_to_topic if used else ErrorCode.none for used in in_use]
