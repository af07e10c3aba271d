"""Typed configuration of one topic, one consumer group or one broker.

A configuration holds only the settings that were set explicitly, because a default may change with a
version. The properties return typed values, defaults included.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from catalog.config.broker_definitions import BROKER_SETTINGS
from catalog.config.definitions import GROUP_SETTINGS, HEARTBEAT_INTERVAL, SESSION_TIMEOUT, TOPIC_SETTINGS
from catalog.config.schema import find_setting
from catalog.errors import InvalidConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from catalog.config.schema import Setting


@dataclass(frozen=True, slots=True)
class ResourceConfig:
    """Configuration of one resource; `explicit` has the settings that were set, sorted by name."""

    schema: ClassVar[Mapping[str, Setting]]
    explicit: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Self:
        """Return a configuration with `settings`, in Kafka's form.

        InvalidConfigError names a setting that is not valid, its value and the valid values.
        """
        canonical = {name: find_setting(cls.schema, name).canonical(text) for name, text in settings.items()}
        config = cls.from_stored(canonical)
        config._check()  # noqa: SLF001  # its own
        return config

    @classmethod
    def from_stored(cls, settings: Mapping[str, str]) -> Self:
        """Return a configuration that was validated when it was stored, perhaps by other rules."""
        return cls(tuple(sorted(settings.items())))

    def _check(self) -> None:
        """Raise InvalidConfigError for settings that contradict each other."""

    def with_changes(self, changes: Mapping[str, str | None]) -> Self:
        """Return this configuration with `changes` applied; None resets a setting to its default."""
        for name in changes:
            find_setting(self.schema, name)
        merged: dict[str, str | None] = {**dict(self.explicit), **changes}
        return self.of({name: text for name, text in merged.items() if text is not None})

    def text(self, name: str) -> str:
        """Return the value as text, as DescribeConfigs shows it."""
        return dict(self.explicit).get(name, find_setting(self.schema, name).default)

    def value(self, name: str) -> bool | int | float | str:
        """Return the typed value."""
        return find_setting(self.schema, name).parse(self.text(name))

    def as_strings(self) -> dict[str, str]:
        """Return the explicit settings, as they are stored."""
        return dict(self.explicit)

    def is_default(self, name: str) -> bool:
        """Return True if the setting was not set explicitly."""
        return name not in dict(self.explicit)

    def _integer(self, name: str) -> int:
        return int(self.value(name))


@lru_cache(maxsize=4096)
def _cleanup_policy(config: TopicConfig) -> str:
    """Return the cleanup policy; cached, because every fetch reads it for every partition."""
    return str(config.value("cleanup.policy"))


@dataclass(frozen=True, slots=True)
class TopicConfig(ResourceConfig):
    """Configuration of one topic.

    -1 means no limit, as in Kafka. -2, which makes a `local.` setting follow its general counterpart, is
    resolved by the properties.
    """

    schema: ClassVar[Mapping[str, Setting]] = TOPIC_SETTINGS

    @override
    def _check(self) -> None:
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfigError(
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) is above max.compaction.lag.ms "
                f"({self.max_compaction_lag_ms})",
                setting="min.compaction.lag.ms",
                remedy="lower min.compaction.lag.ms or raise max.compaction.lag.ms",
            )
        if self.storage_mode == "local" and self.value("remote.storage.enable"):
            raise InvalidConfigError(
                "remote.storage.enable cannot be true where storage.mode is local: records stay on the disk",
                setting="remote.storage.enable",
                remedy="create the topic with storage.mode=object",
            )

    @override
    def with_changes(self, changes: Mapping[str, str | None]) -> Self:
        config = ResourceConfig.with_changes(self, changes)
        if config.storage_mode != self.storage_mode:
            raise InvalidConfigError(
                f"storage.mode is {self.storage_mode} and cannot change: the records would have to move",
                setting="storage.mode",
                remedy="create another topic, and copy the records",
            )
        return config

    @property
    def cleanup_policy(self) -> str:
        """Return `delete`, `compact`, `compact,delete` (in this order), or an empty string."""
        return _cleanup_policy(self)

    @property
    def compacts(self) -> bool:
        """Return True if records are deduplicated by key; then every record must have a key."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Return True if retention by time and size applies."""
        return "delete" in self.cleanup_policy

    @property
    def compression_type(self) -> str:
        """Return the codec of rewritten batches; `producer` keeps the producer's codec."""
        return str(self.value("compression.type"))

    @property
    def retention_ms(self) -> int:
        """Return for how many milliseconds records are kept; -1 is forever."""
        return self._integer("retention.ms")

    @property
    def retention_bytes(self) -> int:
        """Return how many bytes of a partition are kept; negative is no limit."""
        return self._integer("retention.bytes")

    @property
    def local_retention_ms(self) -> int:
        """Return for how many milliseconds the local tier keeps its copy."""
        own = self._integer("local.retention.ms")
        return self.retention_ms if own == -2 else own

    @property
    def local_retention_bytes(self) -> int:
        """Return how many bytes of a partition the local tier keeps."""
        own = self._integer("local.retention.bytes")
        return self.retention_bytes if own == -2 else own

    @property
    def segment_bytes(self) -> int:
        """Return the size at which a local segment is rolled."""
        return self._integer("segment.bytes")

    @property
    def segment_ms(self) -> int:
        """Return the age at which a local segment is rolled."""
        return self._integer("segment.ms")

    @property
    def min_cleanable_dirty_ratio(self) -> float:
        """Return the share of dirty bytes above which a compacted partition is cleaned."""
        return float(self.value("min.cleanable.dirty.ratio"))

    @property
    def min_compaction_lag_ms(self) -> int:
        """Return the minimum time that a record stays uncompacted."""
        return self._integer("min.compaction.lag.ms")

    @property
    def max_compaction_lag_ms(self) -> int:
        """Return the maximum time that a record stays ineligible for compaction."""
        return self._integer("max.compaction.lag.ms")

    @property
    def delete_retention_ms(self) -> int:
        """Return for how long a tombstone is kept after it became clean."""
        return self._integer("delete.retention.ms")

    @property
    def max_message_bytes(self) -> int:
        """Return the maximum size of a record batch, as it is sent (compressed)."""
        return self._integer("max.message.bytes")

    @property
    def message_timestamp_type(self) -> str:
        """Return CreateTime or LogAppendTime."""
        return str(self.value("message.timestamp.type"))

    @property
    def message_timestamp_before_max_ms(self) -> int:
        """Return how far a producer's timestamp may lie in the past."""
        return self._integer("message.timestamp.before.max.ms")

    @property
    def message_timestamp_after_max_ms(self) -> int:
        """Return how far a producer's timestamp may lie in the future."""
        return self._integer("message.timestamp.after.max.ms")

    @property
    def storage_mode(self) -> str:
        """Return `object` (records are in the object store) or `local` (the local tier is the log)."""
        return str(self.value("storage.mode"))


@dataclass(frozen=True, slots=True)
class GroupConfig(ResourceConfig):
    """Configuration of one consumer group."""

    schema: ClassVar[Mapping[str, Setting]] = GROUP_SETTINGS

    @property
    def session_timeout_ms(self) -> int | None:
        """Return the session timeout, or None if it was not set explicitly."""
        return None if self.is_default(SESSION_TIMEOUT) else self._integer(SESSION_TIMEOUT)

    @property
    def heartbeat_interval_ms(self) -> int | None:
        """Return the heartbeat interval, or None if it was not set explicitly."""
        return None if self.is_default(HEARTBEAT_INTERVAL) else self._integer(HEARTBEAT_INTERVAL)


@dataclass(frozen=True, slots=True)
class BrokerConfig(ResourceConfig):
    """Configuration of one broker, or of all."""

    schema: ClassVar[Mapping[str, Setting]] = BROKER_SETTINGS
