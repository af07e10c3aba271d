"""The cost of requests to large classic groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from agent.groups.classic.messages import ClassicGroupState
from agent.groups.errors import ErrorCode
from tests.agent.groups.classic_harness import RANGE, ROUND_ROBIN, ClassicHarness

if TYPE_CHECKING:
    from agent.groups.classic.messages import MemberProtocol


class CountedProtocol:
    """A protocol that counts the reads of its name."""

    metadata = RANGE.metadata
    reads = 0

    @property
    def name(self) -> str:
        CountedProtocol.reads += 1
        return "range"


def test_a_join_does_not_read_the_protocols_of_all_members() -> None:
    """Otherwise the joins of one rebalance of thousands of members block the event loop for minutes."""
    harness = ClassicHarness()
    protocols = (cast("MemberProtocol", CountedProtocol()),)
    ids = harness.make_stable(200, protocols=protocols)
    newcomer = harness.new_member_id()
    CountedProtocol.reads = 0
    harness.join(newcomer)
    for member_id in ids[:10]:
        harness.join(member_id, protocols=protocols)
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert CountedProtocol.reads < 200


def test_a_member_must_support_a_protocol_of_all_members_of_this_moment() -> None:
    harness = ClassicHarness()
    first, second = harness.make_stable(2, protocols=(RANGE, ROUND_ROBIN))
    harness.join(first, protocols=(RANGE,))
    stranger = harness.join(instance_id="i", protocols=(ROUND_ROBIN,))
    assert stranger.error is ErrorCode.inconsistent_group_protocol
    harness.join(first, protocols=(RANGE, ROUND_ROBIN))
    harness.join(second, protocols=(ROUND_ROBIN,))
    assert harness.join(instance_id="i", protocols=(RANGE,)).error is ErrorCode.inconsistent_group_protocol
    assert not harness.join(instance_id="i", protocols=(ROUND_ROBIN,)).is_done
