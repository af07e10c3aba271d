"""What a group coordinator may be told; names and defaults are Kafka's where Kafka has the setting."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING

from catalog.config.group_config import HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from catalog.errors import InvalidConfigError
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from catalog.config.group_config import GroupConfig


class MigrationPolicy(StrEnum):
    """Whether a group with members may go from one of Kafka's group protocols to the other."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def allows_upgrade(self) -> bool:
        """Whether a member of the consumer protocol may join a classic group."""
        return self in {MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL}

    @property
    def allows_downgrade(self) -> bool:
        """Whether a consumer group becomes a classic one when only members of that protocol are left."""
        return self in {MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Limits of consumer groups; times are milliseconds unless the name says else.

    The comment behind a value is Kafka's name for it, where that differs.
    """

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    # How long the first rebalance of an empty group waits for more members: group.initial.rebalance.delay.ms
    initial_rebalance_delay_ms: int = 3_000
    # A member that has joined and is not known by a session yet has this long (Kafka's constant).
    new_member_timeout_ms: int = 300_000
    max_group_size: int = 10_000  # group.max.size
    # Members of consumer groups (KIP-848) are told the interval, and are out when silent for so long.
    consumer_session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    consumer_heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    consumer_max_size: int = 10_000  # group.consumer.max.size
    # How far one group's own settings may go: group.consumer.min.session.timeout.ms, and so on.
    consumer_min_session_timeout_ms: int = 45_000
    consumer_max_session_timeout_ms: int = 60_000
    consumer_min_heartbeat_interval_ms: int = 5_000
    consumer_max_heartbeat_interval_ms: int = 15_000
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL  # group.consumer.migration.policy
    # Topics that come, grow and go are noticed by consumer groups after this long at most.
    topics_refresh_ms: int = 2_000
    offset_metadata_max_bytes: int = 4_096  # offset.metadata.max.bytes
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    # Groups in memory: those without members make room; when all have some, others are refused.
    max_groups: int = 20_000
    # A group without members, and without a call for this long, is only in the catalog.
    idle_group_ms: int = 600_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value < (0 if field.name == "initial_rebalance_delay_ms" else 1):
                raise InvalidInputError(
                    f"group setting {field.name} is {value}", remedy="give a positive number"
                )
        for least, most in _RANGES:
            if getattr(self, least) > getattr(self, most):
                raise InvalidInputError(
                    f"group setting {least} ({getattr(self, least)}) exceeds {most} ({getattr(self, most)})",
                    remedy="lower the first or raise the second",
                )

    def check(self, config: GroupConfig) -> None:
        """Raise InvalidConfigError for settings of a group that go too far (Kafka's GroupConfig.validate)."""
        session, heartbeat = config.session_timeout_ms, config.heartbeat_interval_ms
        for name, value, (least, most) in (
            (HEARTBEAT_INTERVAL, heartbeat, self._heartbeat_range),
            (SESSION_TIMEOUT, session, self._session_range),
        ):
            if value is not None and not least <= value <= most:
                raise InvalidConfigError(
                    f"group setting {name} cannot be {value}",
                    setting=name,
                    remedy=f"give {least} to {most}, or change the agents' settings that bound it",
                )
        if self.session_timeout_of(config) <= self.heartbeat_interval_of(config):
            raise InvalidConfigError(
                f"{SESSION_TIMEOUT} ({self.session_timeout_of(config)}) must be greater than"
                f" {HEARTBEAT_INTERVAL} ({self.heartbeat_interval_of(config)})",
                setting=SESSION_TIMEOUT,
                remedy="raise the first or lower the second",
            )

    def session_timeout_of(self, config: GroupConfig) -> int:
        """How long members of a consumer group with these settings may be silent."""
        own = config.session_timeout_ms
        return self.consumer_session_timeout_ms if own is None else _within(own, self._session_range)

    def heartbeat_interval_of(self, config: GroupConfig) -> int:
        """How often such members send heartbeats."""
        own = config.heartbeat_interval_ms
        return self.consumer_heartbeat_interval_ms if own is None else _within(own, self._heartbeat_range)

    @property
    def _session_range(self) -> tuple[int, int]:
        return self.consumer_min_session_timeout_ms, self.consumer_max_session_timeout_ms

    @property
    def _heartbeat_range(self) -> tuple[int, int]:
        return self.consumer_min_heartbeat_interval_ms, self.consumer_max_heartbeat_interval_ms


_RANGES = (
    ("min_session_timeout_ms", "max_session_timeout_ms"),
    ("consumer_min_session_timeout_ms", "consumer_max_session_timeout_ms"),
    ("consumer_min_heartbeat_interval_ms", "consumer_max_heartbeat_interval_ms"),
)


def _within(value: int, bounds: tuple[int, int]) -> int:
    """The nearest value within bounds: they may have become narrower since it was set."""
    return min(max(value, bounds[0]), bounds[1])
