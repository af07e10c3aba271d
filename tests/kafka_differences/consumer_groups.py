"""Groups of the consumer protocol (KIP-848): heartbeats, epochs, and what classic requests see of them."""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING

from agent.groups.classic.embedded_protocol import write_assignment
from agent.kafka.codec import Struct
from tests.agent.kafka.waiting import until
from tests.kafka_differences.classic_groups import heartbeat, join, sync
from tests.kafka_differences.session import code

if TYPE_CHECKING:
    from tests.kafka_differences.session import Session

_LEAVE, _LEAVE_FOR_A_WHILE = -1, -2
_PING = {"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}


def invalid_heartbeats(s: Session) -> None:
    """Heartbeats that Kafka rejects before it looks for a group."""
    topic = "invalid-heartbeats"
    s.create_topic(topic)
    _Group(s, "", topic).beat("empty group name")
    group = _Group(s, "invalid-heartbeats", topic)
    group.beat("no member id", member_id="")
    group.beat("no rebalance timeout", rebalance_timeout=-1)
    group.beat("no subscription", subscribed_topic_names=None)
    group.beat("no partitions", topic_partitions=None)
    group.beat("owned partitions", topic_partitions=group.partitions(0))
    group.beat("unknown assignor", server_assignor="unknown")
    group.beat("invalid pattern", subscribed_topic_names=None, subscribed_topic_regex="(")
    group.beat("epoch -3", member_epoch=-3)
    group.beat("epoch -2 without an instance", member_epoch=_LEAVE_FOR_A_WHILE)
    group.beat("empty instance", instance_id="")
    group.beat("empty rack", rack_id="")


def dynamic_members(s: Session) -> None:
    """Two members share a topic; commits and look-ups are fenced by the epoch of a member."""
    topic, name = "consumers", "consumers"
    _create_topic(s, topic, 2)
    group = _Group(s, name, topic)
    epoch = group.beat("join")
    group.beat("owns both", member_epoch=epoch, topic_partitions=group.partitions(0, 1))
    group.beat("ping", member_epoch=epoch, **_PING)
    group.beat("later epoch", member_epoch=99, **_PING)
    group.beat("unknown member", member_id="unknown", member_epoch=1, **_PING)
    s.commit("commit in version 8", name, topic, 1, epoch=epoch, member="first")
    s.commit("commit", name, topic, 1, epoch=epoch, member="first", version=9)
    s.commit("commit, later epoch", name, topic, 1, epoch=99, member="first", version=9)
    s.commit("commit, unknown member", name, topic, 1, epoch=1, member="unknown", version=9)
    s.commit("commit, no member", name, topic, 1, version=9)
    group.committed("committed", "first", epoch)
    group.committed("committed, later epoch", "first", 99)
    group.committed("committed, unknown member", "unknown", 1)
    group.committed("committed, no member", None, -1)
    s.codes("classic heartbeat", "heartbeat", 4, group_id=name, generation_id=epoch, member_id="first")
    s.codes("classic sync", "sync_group", 5, group_id=name, generation_id=epoch, member_id="first")
    s.codes("describe as a classic group", "describe_groups", 6, groups=[name])
    s.codes("delete a group with a member", "delete_groups", 2, groups_names=[name])

    group.beat("second joins", member_id="second")
    group.beat("first must give up one", member_epoch=epoch, **_PING)
    later = group.beat("first gave up one", member_epoch=epoch, topic_partitions=group.partitions(0))
    s.commit("commit of the later epoch", name, topic, 2, epoch=later, member="first", version=9)
    s.commit("commit of the earlier epoch", name, topic, 3, epoch=epoch, member="first", version=9)
    group.describe("describe")
    group.beat("second leaves", member_id="second", member_epoch=_LEAVE)
    group.beat("second leaves again", member_id="second", member_epoch=_LEAVE)
    group.beat("first joins again")
    group.beat("first leaves", member_epoch=_LEAVE)
    group.describe("describe, empty")


def static_members(s: Session) -> None:
    """A static member leaves for a while, and another one continues in its place."""
    _create_topic(s, "static-consumers", 2)
    group = _Group(s, "static-consumers", "static-consumers", instance_id="i")
    epoch = group.beat("join")
    group.beat("join while it is there", member_id="second")
    group.beat("leave for a while", member_epoch=_LEAVE_FOR_A_WHILE)
    group.beat("ping after that", member_epoch=epoch, **_PING)
    group.beat("second joins", member_id="second")
    group.beat("ping of the replaced", member_epoch=epoch, **_PING)
    group.beat("unknown member leaves", member_id="other", member_epoch=_LEAVE)
    group.beat("second leaves", member_id="second", member_epoch=_LEAVE)


def patterns(s: Session) -> None:
    """A member subscribes to a pattern, and gets the partitions of the topics that match."""
    s.create_topic("pattern-1", 2)
    pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": "pattern-.*"}
    group = _Group(s, "patterns", "pattern-1", **pattern)
    epochs = [group.ask().member_epoch]
    assigned: list[int] = []

    def has_partitions() -> bool:
        response = group.ask(member_epoch=epochs[-1])
        epochs.append(response.member_epoch)
        assigned[:] = _partitions(response) or []
        return bool(assigned)

    until(has_partitions)
    s.saw("assigned", assigned)


def migration(s: Session) -> None:
    """A classic group becomes a consumer group when such a member joins, and is classic again without it."""
    topic, name = "migration", "migration"
    _create_topic(s, topic, 2)
    subscription = pack(f">hih{len(topic)}sii", 1, 1, len(topic), topic.encode(), -1, 0)
    everything = write_assignment(1, [(topic, 0), (topic, 1)])
    classic = join(s, "classic member without an id", name, subscription=subscription).member_id
    join(s, "classic member", name, classic, subscription=subscription)
    sync(s, "classic member syncs", name, 1, classic, assignment=everything)

    group = _Group(s, name, topic)
    epoch = group.beat("consumer member joins")
    heartbeat(s, "classic heartbeat", name, 1, classic)
    joined = join(s, "classic member joins again", name, classic, subscription=subscription)
    generation = joined.generation_id
    sync(s, "classic member syncs again", name, generation, classic)
    heartbeat(s, "classic heartbeat in the consumer group", name, generation, classic)
    group.beat("consumer member gets a partition", member_epoch=epoch, **_PING)
    s.commit("classic commit", name, topic, 1, epoch=generation, member=classic)
    s.commit("classic commit, other generation", name, topic, 1, epoch=99, member=classic)

    group.beat("consumer member leaves", member_epoch=_LEAVE)
    heartbeat(s, "classic heartbeat after that", name, generation, classic)
    join(s, "classic member joins the classic group", name, classic, subscription=subscription)
    described = s.ask("describe_groups", 5, groups=[name]).groups[0]
    s.saw("describe", (code(described.error_code), described.group_state, len(described.members)))


class _Group:
    """A group whose members subscribe to one topic; `fields` are those of all heartbeats.

    Epochs are recorded as their distance from the first one, which a broker may choose.
    """

    def __init__(self, session: Session, name: str, topic: str, **fields: object) -> None:
        self._session, self._name, self._topic = session, name, topic
        self._topic_id = session.topic_id(topic)
        self._fields = fields
        self._first_epoch: int | None = None

    def partitions(self, *numbers: int) -> list[Struct]:
        """Return partitions of the topic as a heartbeat has them."""
        return [Struct(topic_id=self._topic_id, partitions=numbers)]

    def ask(self, **fields: object) -> Struct:
        """Send a heartbeat; without `fields`, the member `first` joins."""
        joining = {
            "member_id": "first",
            "member_epoch": 0,
            "rebalance_timeout": 60_000,
            "subscribed_topic_names": [self._topic],
            "topic_partitions": [],
        }
        request = {**joining, **self._fields, **fields}
        return self._session.ask("consumer_group_heartbeat", 1, group_id=self._name, **request)

    def beat(self, step: str, **fields: object) -> int:
        """Send a heartbeat as a step: code, epoch and assigned partitions. Return the epoch."""
        response = self.ask(**fields)
        epoch: int = response.member_epoch
        self._session.saw(step, (code(response.error_code), self._distance(epoch), _partitions(response)))
        return epoch

    def committed(self, step: str, member: str | None, epoch: int) -> None:
        """Fetch the committed offset of a partition as a member."""
        wanted = Struct(
            group_id=self._name,
            member_id=member,
            member_epoch=epoch,
            topics=[Struct(name=self._topic, partition_indexes=[0])],
        )
        (found,) = self._session.ask("offset_fetch", 9, groups=[wanted], require_stable=True).groups
        offsets = [each.committed_offset for topic in found.topics for each in topic.partitions]
        self._session.saw(step, (code(found.error_code), offsets))

    def describe(self, step: str) -> None:
        """Describe the group: code, state, assignor, and (id, epoch, number of partitions) of members."""
        (described,) = self._session.ask("consumer_group_describe", 1, group_ids=[self._name]).groups
        members = sorted(
            (
                each.member_id,
                self._distance(each.member_epoch),
                sum(len(topic.partitions) for topic in each.assignment.topic_partitions),
            )
            for each in described.members
        )
        self._session.saw(
            step, (code(described.error_code), described.group_state, described.assignor_name, members)
        )

    def _distance(self, epoch: int) -> int | str:
        if epoch <= 0:
            return epoch
        if self._first_epoch is None:
            self._first_epoch = epoch
        return f"first + {epoch - self._first_epoch}"


def _create_topic(s: Session, name: str, partitions: int) -> None:
    """Create a topic, and wait until the coordinator assigns its partitions."""
    s.create_topic(name, partitions)
    probe = _Group(s, f"{name}-probe", name)
    until(lambda: _partitions(probe.ask()) == [*range(partitions)])


def _partitions(response: Struct) -> list[int] | None:
    """Return the assigned partitions; None if the response leaves them as they are."""
    if response.assignment is None:
        return None
    return sorted(each for topic in response.assignment.topic_partitions for each in topic.partitions)
