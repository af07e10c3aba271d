"""Single steps of a member towards its target assignment."""

from __future__ import annotations

from uuid import UUID

from agent.groups.consumer.member import ConsumerMember, MemberState
from agent.groups.consumer.reconciliation import reconcile
from catalog.model import PartitionId

_TOPIC = UUID(int=1)


def _partitions(*numbers: int) -> frozenset[PartitionId]:
    return frozenset(PartitionId(_TOPIC, number) for number in numbers)


def _step(
    member: ConsumerMember, target: frozenset[PartitionId], owned: frozenset[PartitionId] | None
) -> ConsumerMember:
    return reconcile(member, target=target, target_epoch=9, owned=owned, is_free=lambda _: True)


def test_a_member_that_does_not_read_the_revoked_partitions_needs_no_further_step() -> None:
    member = ConsumerMember(member_id="m", epoch=3, assigned=_partitions(0, 1))
    waiting = _step(member, _partitions(0), _partitions(0, 1))
    assert (waiting.epoch, waiting.state) == (3, MemberState.UNREVOKED_PARTITIONS)
    done = _step(member, _partitions(0), _partitions(0))
    assert (done.epoch, done.state, done.assigned) == (9, MemberState.STABLE, _partitions(0))


def test_each_revocation_raises_the_epoch_if_another_one_follows() -> None:
    """Otherwise a late heartbeat from before the first revocation would pass for a current one."""
    member = ConsumerMember(member_id="m", epoch=3, assigned=_partitions(0, 1, 2))
    first = _step(member, _partitions(0, 1), _partitions(0, 1, 2))
    second = _step(first, _partitions(0), _partitions(0, 1))
    assert (second.epoch, second.state) == (4, MemberState.UNREVOKED_PARTITIONS)
    assert (second.assigned, second.pending_revocation) == (_partitions(0), _partitions(1))
    assert _step(second, _partitions(0), _partitions(0)).epoch == 9
