"""Settings of the group coordinator; names and defaults are Kafka's where Kafka has the setting."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from catalog.config.definitions import GROUP_SETTINGS, HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from catalog.errors import InvalidConfigError
from core.settings import Bytes, check_bounds, check_order, internal, setting

if TYPE_CHECKING:
    from catalog.config.values import GroupConfig


class MigrationPolicy(StrEnum):
    """Directions in which a group with members may change its group protocol."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def allows_upgrade(self) -> bool:
        """Return True if a member of the consumer protocol may join a classic group."""
        return self in {MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL}

    @property
    def allows_downgrade(self) -> bool:
        """Return True if a consumer group becomes a classic group once it has only classic members."""
        return self in {MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Limits and intervals of consumer groups, of both group protocols."""

    # Classic groups
    group_min_session_timeout_ms: int = setting(
        6_000, "Shortest session timeout that a member of a classic group may request."
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, "Longest session timeout that a member of a classic group may request."
    )
    group_initial_rebalance_delay_ms: int = setting(
        3_000, "Time for which the first rebalance of an empty classic group waits for more members.", ge=0
    )
    new_member_timeout_ms: int = internal(
        300_000, "Time that a new classic member has to confirm its member id (a constant in Kafka)."
    )
    group_max_size: int = setting(10_000, "Maximum number of members of a classic group.")

    # Consumer groups (KIP-848)
    group_consumer_session_timeout_ms: int = setting(
        int(GROUP_SETTINGS[SESSION_TIMEOUT].default),
        "Time without a heartbeat after which a member of a consumer group (KIP-848) is removed.",
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        int(GROUP_SETTINGS[HEARTBEAT_INTERVAL].default),
        "Interval at which members of a consumer group send heartbeats.",
    )
    group_consumer_max_size: int = setting(10_000, "Maximum number of members of a consumer group.")
    group_consumer_min_session_timeout_ms: int = setting(
        45_000, "Minimum `consumer.session.timeout.ms` in the configuration of a group."
    )
    group_consumer_max_session_timeout_ms: int = setting(
        60_000, "Maximum `consumer.session.timeout.ms` in the configuration of a group."
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        5_000, "Minimum `consumer.heartbeat.interval.ms` in the configuration of a group."
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        15_000, "Maximum `consumer.heartbeat.interval.ms` in the configuration of a group."
    )
    group_consumer_migration_policy: MigrationPolicy = setting(
        MigrationPolicy.BIDIRECTIONAL,
        "Direction in which a group with members may change its protocol: `upgrade` from classic to consumer,"
        " `downgrade` from consumer to classic, `bidirectional`, or `disabled`.",
    )
    topics_refresh_ms: int = internal(
        2_000, "Interval at which consumer groups look for new, larger and deleted topics."
    )

    # Offsets and memory, for both protocols
    offset_metadata_max_bytes: Bytes = setting(
        4_096, "Maximum size of the metadata that a consumer stores with a committed offset."
    )
    offsets_retention_minutes: int = setting(
        10_080, "How long an agent keeps committed offsets that no member of the group uses."
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "Interval at which an agent deletes expired offsets."
    )
    consumer_lag_interval_ms: int = setting(
        30_000,
        "Interval of the query for the lag of consumer groups; each reads up to 10,000 committed offsets.",
    )
    consumer_lag_max_partitions: int = setting(
        1_000,
        "Maximum number of committed offsets for which an agent has lag metrics; those with the greatest lag "
        "are kept. 0 turns the metrics off.",
        ge=0,
    )
    max_groups: int = setting(
        20_000,
        "Maximum number of groups in the memory of an agent; at the limit it evicts groups without members.",
    )
    group_max_bytes: Bytes = setting(
        16 * 1024 * 1024,
        "Maximum memory of one group: subscriptions, metadata and assignments of its members.",
    )
    groups_max_bytes: Bytes = setting(
        128 * 1024 * 1024, "Maximum memory of all groups of an agent; at the limit, no member can join."
    )
    idle_group_ms: int = internal(
        600_000, "Time without a request after which a group without members is evicted from memory."
    )

    def __post_init__(self) -> None:
        check_bounds(self, "group")
        for smaller, larger in _ORDERED:
            check_order(self, "group", smaller, larger)

    def check(self, config: GroupConfig) -> None:
        """Raise `InvalidConfigError` for settings of a group that exceed the limits of the agent."""
        session, heartbeat = config.session_timeout_ms, config.heartbeat_interval_ms
        for name, value, (lowest, highest) in (
            (HEARTBEAT_INTERVAL, heartbeat, self._heartbeat_range),
            (SESSION_TIMEOUT, session, self._session_range),
        ):
            if value is not None and not lowest <= value <= highest:
                raise InvalidConfigError(
                    f"group setting {name} cannot be {value}",
                    setting=name,
                    remedy=f"give {lowest} to {highest}, or change the agents' settings that bound it",
                )
        if self.session_timeout_of(config) <= self.heartbeat_interval_of(config):
            raise InvalidConfigError(
                f"{SESSION_TIMEOUT} ({self.session_timeout_of(config)}) must be greater than"
                f" {HEARTBEAT_INTERVAL} ({self.heartbeat_interval_of(config)})",
                setting=SESSION_TIMEOUT,
                remedy="raise the first or lower the second",
            )

    def session_timeout_of(self, config: GroupConfig) -> int:
        """Return the session timeout of members of a consumer group with these settings."""
        own = config.session_timeout_ms
        return self.group_consumer_session_timeout_ms if own is None else _within(own, self._session_range)

    def heartbeat_interval_of(self, config: GroupConfig) -> int:
        """Return the heartbeat interval of members of a consumer group with these settings."""
        own = config.heartbeat_interval_ms
        return (
            self.group_consumer_heartbeat_interval_ms if own is None else _within(own, self._heartbeat_range)
        )

    @property
    def _session_range(self) -> tuple[int, int]:
        return self.group_consumer_min_session_timeout_ms, self.group_consumer_max_session_timeout_ms

    @property
    def _heartbeat_range(self) -> tuple[int, int]:
        return self.group_consumer_min_heartbeat_interval_ms, self.group_consumer_max_heartbeat_interval_ms


_ORDERED = (
    ("group_min_session_timeout_ms", "group_max_session_timeout_ms"),
    ("group_consumer_min_session_timeout_ms", "group_consumer_max_session_timeout_ms"),
    ("group_consumer_min_heartbeat_interval_ms", "group_consumer_max_heartbeat_interval_ms"),
)


def _within(value: int, bounds: tuple[int, int]) -> int:
    """Return the nearest value within the bounds, which may have changed since the setting was made."""
    return min(max(value, bounds[0]), bounds[1])
