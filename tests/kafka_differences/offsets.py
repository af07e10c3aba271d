"""Offsets that clients without a group membership commit, fetch and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.codec import Struct
from tests.kafka_differences.session import code

if TYPE_CHECKING:
    from tests.kafka_differences.session import Session


def offsets_of_groups(s: Session) -> None:
    """Commits, look-ups and deletions, and what they refuse."""
    topic, group = "offsets", "offsets"
    s.create_topic(topic, 2)
    s.committed("of an unknown group", group, topic)
    s.committed("of an empty group name", "", topic)
    s.committed("of an unknown topic", group, "unknown")
    s.commit("commit", group, topic, 5)
    s.commit("offset -1", group, topic, -1, partition=1)
    s.commit("unknown partition", group, topic, 5, partition=9)
    s.commit("unknown topic", group, "unknown", 5)
    s.commit("generation and member", group, topic, 5, epoch=1, member="m")
    s.commit("generation", group, topic, 5, epoch=1)
    s.commit("member", group, topic, 5, member="m")
    s.commit("instance", group, topic, 5, instance="i")
    s.commit("metadata of 4,097 bytes", group, topic, 5, metadata="x" * 4097)
    s.commit("metadata of 4,096 bytes", group, topic, 5, metadata="x" * 4096)
    s.commit("no metadata", group, topic, 6, metadata=None)
    s.commit("empty group name", "", topic, 5)
    s.commit("unknown group, generation", "unknown", topic, 5, epoch=1, member="m")
    s.commit("unknown group, epoch", "unknown", topic, 5, epoch=1, member="m", version=9)
    s.commit("unknown group, instance", "unknown-instance", topic, 5, instance="i")
    s.commit("version 2", group, topic, 7, version=2)
    s.committed("committed", group, topic, 0, 1, 9)
    _delete(s, "delete of an unknown group", "no-group", topic, 0)
    _delete(s, "delete of an unknown topic", group, "unknown", 0)
    _delete(s, "delete of an empty group name", "", topic, 0)
    _delete(s, "delete", group, topic, 0, 1, 9)
    s.committed("deleted", group, topic, 0, 1)
    s.codes("delete groups", "delete_groups", 2, groups_names=[group, "no-group"])
    for version in (5, 6):
        described = s.ask("describe_groups", version, groups=[group]).groups[0]
        s.saw(f"describe {version}", (code(described.error_code), described.group_state))


def _delete(s: Session, step: str, group: str, topic: str, *partitions: int) -> None:
    """Delete committed offsets."""
    wanted = [Struct(partition_index=each) for each in partitions]
    s.codes(step, "offset_delete", 0, group_id=group, topics=[Struct(name=topic, partitions=wanted)])
