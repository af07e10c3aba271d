"""Brings what a member has towards what it shall have (KIP-848; Kafka's CurrentAssignmentBuilder).

A partition is given to a member only when no other has it any more, and a member enters the next epoch only
when it has given up what it must: so at no time two members may read one partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.consumer.member import MemberState

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.groups.consumer.member import ConsumerMember
    from agent.groups.consumer.messages import Assignment
    from catalog.model import PartitionId


def reconcile(
    member: ConsumerMember,
    *,
    target: Assignment,
    target_epoch: int,
    owned: Assignment | None,
    is_free: Callable[[PartitionId], bool],
) -> ConsumerMember:
    """The member's next step.

    `owned` is what it says that it has, None if it did not say; `is_free` tells whether nobody has
    a partition.
    """
    epoch = member.epoch
    if member.state is MemberState.STABLE and epoch == target_epoch:
        return member
    if member.state is MemberState.UNREVOKED:
        if _holds(owned, member.revoking):
            return member
        epoch += 1
    kept = member.assigned & target
    revoking = member.assigned - kept
    missing = target - kept
    free = frozenset(filter(is_free, missing))
    if revoking and _holds(owned, revoking):
        return member.moved(epoch, MemberState.UNREVOKED, assigned=kept, revoking=revoking)
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED
    return member.moved(target_epoch, state, assigned=kept | free)


def _holds(owned: Assignment | None, partitions: Assignment) -> bool:
    """Whether the member has some of these still; one that does not say may."""
    return owned is None or bool(owned & partitions)
