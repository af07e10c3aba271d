"""Prometheus metrics of the groups that this agent coordinates."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from catalog.groups.repository import GroupType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client.metrics_core import Metric

    from agent.groups.memory import GroupMemory

_DESCRIPTIONS = {
    "rebalances": "Generations of classic groups and target assignments of consumer groups that were started",
    "members_expired": "Members removed because their session or their rebalance timeout ended",
    "offset_commits": "Offset commits that were stored",
    "offset_commits_rejected": "Offset commits that were rejected",
    "groups_expired": "Groups deleted because they had no members and their last offset expired",
    "upgrades": "Classic groups with members that were converted to consumer groups",
    "downgrades": "Consumer groups that were converted to classic groups",
}


@dataclass(slots=True)
class GroupCounters:
    """Counts of group events since this agent started."""

    rebalances: int = 0
    members_expired: int = 0
    offset_commits: int = 0
    offset_commits_rejected: int = 0
    groups_expired: int = 0
    upgrades: int = 0
    downgrades: int = 0


class MeasuredGroup(Protocol):
    """The part of a group that metrics read."""

    @property
    def group_type(self) -> GroupType:
        """The group's protocol."""
        ...

    @property
    def state(self) -> str:
        """The name of the state as Kafka's tools show it."""
        ...

    @property
    def member_count(self) -> int:
        """The number of members."""
        ...


class GroupSource(Protocol):
    """The groups in memory and their counters."""

    @property
    def memory(self) -> GroupMemory:
        """The memory of all groups."""
        ...

    @property
    def counters(self) -> GroupCounters:
        """The counters of group events."""
        ...

    def groups(self) -> Sequence[MeasuredGroup]:
        """Return all groups in memory."""
        ...


class GroupCollector(Collector):
    """Collector of group counts by type and state, member counts, and the group counters."""

    def __init__(self, source: GroupSource) -> None:
        self._source = source

    @override
    def collect(self) -> Iterable[Metric]:
        """Yield the current values."""
        states: Counter[tuple[str, str]] = Counter()
        members: Counter[str] = Counter({kind.value: 0 for kind in GroupType})
        for group in self._source.groups():
            states[group.group_type.value, str(group.state)] += 1
            members[group.group_type.value] += group.member_count
        groups = GaugeMetricFamily(
            "siltstone_groups", "Groups in this agent's memory", labels=["type", "state"]
        )
        for labels, count in sorted(states.items()):
            groups.add_metric(labels, count)
        yield groups
        sizes = GaugeMetricFamily(
            "siltstone_group_members", "Members of the groups in this agent's memory", labels=["type"]
        )
        for group_type, count in sorted(members.items()):
            sizes.add_metric([group_type], count)
        yield sizes
        yield GaugeMetricFamily(
            "siltstone_group_bytes",
            "Bytes of the members of groups in this agent's memory",
            value=self._source.memory.budget.used,
        )
        for field in fields(GroupCounters):
            value = getattr(self._source.counters, field.name)
            yield CounterMetricFamily(f"siltstone_group_{field.name}", _DESCRIPTIONS[field.name], value=value)
