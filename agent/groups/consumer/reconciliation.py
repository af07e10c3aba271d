"""Reconciliation of a member's assignment with its target (KIP-848, Kafka's CurrentAssignmentBuilder).

A partition is assigned to a member only after every other member has revoked it. A member enters the target
epoch only after it has revoked what it must. Therefore no two members read one partition at the same time.
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
    """Return the member after its next step towards the target assignment.

    `owned` are the partitions that its heartbeat lists, None if it lists none. `is_free` returns True for
    a partition that no member owns.
    """
    epoch = member.epoch
    if member.state is MemberState.STABLE and epoch == target_epoch:
        return member
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _may_own(owned, member.pending_revocation):
            return member
        epoch += 1
    kept = member.assigned & target
    to_revoke = member.assigned - kept
    missing = target - kept
    free = frozenset(filter(is_free, missing))
    if to_revoke and _may_own(owned, to_revoke):
        return member.reconciled(
            epoch, MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending_revocation=to_revoke
        )
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED_PARTITIONS
    return member.reconciled(target_epoch, state, assigned=kept | free)


def _may_own(owned: Assignment | None, partitions: Assignment) -> bool:
    """Return True if the member reads some of these partitions, or does not list what it reads."""
    return owned is None or bool(owned & partitions)
