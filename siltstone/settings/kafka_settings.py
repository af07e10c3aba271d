"""The settings that Kafka has too: their names are Kafka's, with underscores for dots.

But for `max_groups`, for Kafka's coordinator takes as many as its memory has room for.
"""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings

from agent.groups.settings import GroupSettings, MigrationPolicy
from agent.settings import AgentSettings

_AGENT = AgentSettings()
_GROUPS = GroupSettings()


class KafkaSettings(BaseSettings):
    """The settings of the Kafka protocol: automatic topics, connections and groups."""

    auto_create_topics_enable: bool = Field(
        default=_AGENT.auto_create_topics,
        description="Whether a topic that a Kafka client asks for is created when it does not exist.",
    )
    num_partitions: int = Field(
        default=_AGENT.default_partitions,
        ge=1,
        description="How many partitions a topic has whose creator does not say.",
    )
    max_connections: int = Field(
        default=_AGENT.kafka_max_connections,
        ge=1,
        description="How many connections of Kafka clients an agent has; one more is closed at once.",
    )
    max_connections_per_ip: int = Field(
        default=_AGENT.kafka_max_connections_per_ip, ge=1, description="How many of them from one address."
    )
    group_min_session_timeout_ms: int = Field(
        default=_GROUPS.min_session_timeout_ms,
        ge=1,
        description="The shortest session that a member of a classic group may ask for.",
    )
    group_max_session_timeout_ms: int = Field(
        default=_GROUPS.max_session_timeout_ms, ge=1, description="The longest one."
    )
    group_initial_rebalance_delay_ms: int = Field(
        default=_GROUPS.initial_rebalance_delay_ms,
        ge=0,
        description="How long the first rebalance of an empty classic group waits for more members.",
    )
    group_max_size: int = Field(
        default=_GROUPS.max_group_size, ge=1, description="How many members a classic group may have."
    )
    group_consumer_session_timeout_ms: int = Field(
        default=_GROUPS.consumer_session_timeout_ms,
        ge=1,
        description="How long a member of a consumer group (KIP-848) may be silent.",
    )
    group_consumer_heartbeat_interval_ms: int = Field(
        default=_GROUPS.consumer_heartbeat_interval_ms,
        ge=1,
        description="How often such members are told to send heartbeats.",
    )
    group_consumer_min_session_timeout_ms: int = Field(
        default=_GROUPS.consumer_min_session_timeout_ms,
        ge=1,
        description="The shortest `consumer.session.timeout.ms` that a single group may be given.",
    )
    group_consumer_max_session_timeout_ms: int = Field(
        default=_GROUPS.consumer_max_session_timeout_ms, ge=1, description="The longest one."
    )
    group_consumer_min_heartbeat_interval_ms: int = Field(
        default=_GROUPS.consumer_min_heartbeat_interval_ms,
        ge=1,
        description="The shortest `consumer.heartbeat.interval.ms` that a single group may be given.",
    )
    group_consumer_max_heartbeat_interval_ms: int = Field(
        default=_GROUPS.consumer_max_heartbeat_interval_ms, ge=1, description="The longest one."
    )
    group_consumer_max_size: int = Field(
        default=_GROUPS.consumer_max_size, ge=1, description="How many members a consumer group may have."
    )
    group_consumer_migration_policy: MigrationPolicy = Field(
        default=_GROUPS.migration_policy,
        description="Whether a group with members may go from one protocol to the other:"
        " `bidirectional`, `upgrade` (from classic to consumer), `downgrade`, or `disabled`.",
    )
    max_groups: int = Field(
        default=_GROUPS.max_groups,
        ge=1,
        description="How many groups an agent has in memory; those without members make room for others.",
    )
    offset_metadata_max_bytes: int = Field(
        default=_GROUPS.offset_metadata_max_bytes,
        ge=1,
        description="How much text a consumer may store with an offset.",
    )
    offsets_retention_minutes: int = Field(
        default=_GROUPS.offsets_retention_minutes,
        ge=1,
        description="How long offsets are kept that no member of their group needs.",
    )
    offsets_retention_check_interval_ms: int = Field(
        default=_GROUPS.offsets_retention_check_interval_ms,
        ge=1,
        description="How often such offsets are looked for.",
    )

    @property
    def groups(self) -> GroupSettings:
        """What a group coordinator is told."""
        return GroupSettings(
            min_session_timeout_ms=self.group_min_session_timeout_ms,
            max_session_timeout_ms=self.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=self.group_initial_rebalance_delay_ms,
            max_group_size=self.group_max_size,
            consumer_session_timeout_ms=self.group_consumer_session_timeout_ms,
            consumer_heartbeat_interval_ms=self.group_consumer_heartbeat_interval_ms,
            consumer_min_session_timeout_ms=self.group_consumer_min_session_timeout_ms,
            consumer_max_session_timeout_ms=self.group_consumer_max_session_timeout_ms,
            consumer_min_heartbeat_interval_ms=self.group_consumer_min_heartbeat_interval_ms,
            consumer_max_heartbeat_interval_ms=self.group_consumer_max_heartbeat_interval_ms,
            consumer_max_size=self.group_consumer_max_size,
            migration_policy=self.group_consumer_migration_policy,
            max_groups=self.max_groups,
            offset_metadata_max_bytes=self.offset_metadata_max_bytes,
            offsets_retention_minutes=self.offsets_retention_minutes,
            offsets_retention_check_interval_ms=self.offsets_retention_check_interval_ms,
        )
