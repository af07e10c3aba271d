"""What this agent's part of the groups amounts to, for Prometheus."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from agent.groups.consumer.group import ConsumerGroup
from agent.groups.counts import GroupCounts
from catalog.groups.repository import GroupType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

    from agent.groups.coordinator import GroupCoordinator


_TEXTS = {
    "rebalances": "Generations begun, and epochs of consumer groups",
    "members_expired": "Members that were silent, or did not follow, for too long",
    "offset_commits": "Commits of offsets that were taken",
    "offset_commits_refused": "Commits of offsets that were refused",
    "groups_expired": "Groups that nobody used any more",
    "upgrades": "Classic groups with members that have become consumer groups",
    "downgrades": "Consumer groups that were left to members of the classic protocol, and are classic now",
}


class GroupCollector(Collector):
    """The groups in memory by type and state, their members, and what has happened."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    @override
    def collect(self) -> Iterable[Metric]:
        """One sample for each type and state that there is."""
        states: Counter[tuple[str, str]] = Counter()
        members: Counter[str] = Counter({kind.value: 0 for kind in GroupType})
        for group in self._coordinator.held.groups():
            kind = GroupType.CONSUMER if isinstance(group, ConsumerGroup) else GroupType.CLASSIC
            states[kind.value, group.state.value] += 1
            members[kind.value] += group.member_count
        groups = GaugeMetricFamily(
            "siltstone_groups", "Groups that this agent holds", labels=["type", "state"]
        )
        for labels, count in sorted(states.items()):
            groups.add_metric(labels, count)
        yield groups
        sizes = GaugeMetricFamily("siltstone_group_members", "Members of these groups", labels=["type"])
        for kind_name, count in sorted(members.items()):
            sizes.add_metric([kind_name], count)
        yield sizes
        for field in fields(GroupCounts):
            value = getattr(self._coordinator.held.counts, field.name)
            yield CounterMetricFamily(f"siltstone_group_{field.name}", _TEXTS[field.name], value=value)
