"""The configuration of one topic: what was set, with typed values and Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from catalog.config.configured import Configured
from catalog.config.topic_settings import SETTINGS
from catalog.errors import InvalidConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from catalog.config.setting import Setting


@lru_cache(maxsize=4096)
def _cleanup_policy(config: TopicConfig) -> str:
    """Remembered, because every partition of every fetch asks."""
    return str(config.value("cleanup.policy"))


@dataclass(frozen=True, slots=True)
class TopicConfig(Configured):
    """The settings of one topic.

    Made by `TopicConfig.of`, which validates; the properties give typed values, defaults included. -1 and -2
    mean what they mean in Kafka (no limit; as the setting without `local.`, which is already resolved here).
    """

    known: ClassVar[Mapping[str, Setting]] = SETTINGS

    @override
    def _check(self) -> None:
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfigError(
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) is above max.compaction.lag.ms "
                f"({self.max_compaction_lag_ms})",
                setting="min.compaction.lag.ms",
                remedy="lower the one or raise the other",
            )
        if self.storage_mode == "local" and self.value("remote.storage.enable"):
            raise InvalidConfigError(
                "remote.storage.enable cannot be true where storage.mode is local: records stay on the disk",
                setting="remote.storage.enable",
                remedy="create the topic with storage.mode=object",
            )

    @override
    def altered(self, changes: Mapping[str, str | None]) -> Self:
        config = Configured.altered(self, changes)
        if config.storage_mode != self.storage_mode:
            raise InvalidConfigError(
                f"storage.mode is {self.storage_mode} and cannot change: the records would have to move",
                setting="storage.mode",
                remedy="create another topic, and copy the records",
            )
        return config

    @property
    def cleanup_policy(self) -> str:
        """delete, compact, both (`compact,delete`, whatever order was given), or nothing."""
        return _cleanup_policy(self)

    @property
    def compacts(self) -> bool:
        """Whether keys are deduplicated; then every record must have one."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether retention by time and size applies."""
        return "delete" in self.cleanup_policy

    @property
    def compression_type(self) -> str:
        """`producer` keeps what came; otherwise the codec that rewritten batches get."""
        return str(self.value("compression.type"))

    @property
    def retention_ms(self) -> int:
        """Milliseconds that records are kept; -1 for ever."""
        return self._whole("retention.ms")

    @property
    def retention_bytes(self) -> int:
        """Bytes that a partition may hold; negative for no limit."""
        return self._whole("retention.bytes")

    @property
    def local_retention_ms(self) -> int:
        """Milliseconds that the local tier keeps its copy."""
        own = self._whole("local.retention.ms")
        return self.retention_ms if own == -2 else own

    @property
    def local_retention_bytes(self) -> int:
        """Bytes of a partition that the local tier keeps."""
        own = self._whole("local.retention.bytes")
        return self.retention_bytes if own == -2 else own

    @property
    def segment_bytes(self) -> int:
        """Size at which a local segment is rolled."""
        return self._whole("segment.bytes")

    @property
    def segment_ms(self) -> int:
        """Age at which a local segment is rolled."""
        return self._whole("segment.ms")

    @property
    def min_cleanable_dirty_ratio(self) -> float:
        """The share of dirty bytes from which a compacted partition is worth a job."""
        return float(self.value("min.cleanable.dirty.ratio"))

    @property
    def min_compaction_lag_ms(self) -> int:
        """A record stays uncompacted for at least this long."""
        return self._whole("min.compaction.lag.ms")

    @property
    def max_compaction_lag_ms(self) -> int:
        """A record is open to compaction after this long at the latest."""
        return self._whole("max.compaction.lag.ms")

    @property
    def delete_retention_ms(self) -> int:
        """How long a tombstone is kept once it is clean."""
        return self._whole("delete.retention.ms")

    @property
    def max_message_bytes(self) -> int:
        """The largest record batch that is taken, as it comes (compressed)."""
        return self._whole("max.message.bytes")

    @property
    def message_timestamp_type(self) -> str:
        """CreateTime or LogAppendTime."""
        return str(self.value("message.timestamp.type"))

    @property
    def message_timestamp_before_max_ms(self) -> int:
        """How far in the past a producer's timestamp may lie."""
        return self._whole("message.timestamp.before.max.ms")

    @property
    def message_timestamp_after_max_ms(self) -> int:
        """How far in the future a producer's timestamp may lie."""
        return self._whole("message.timestamp.after.max.ms")

    @property
    def storage_mode(self) -> str:
        """`object` (the home is the object store) or `local` (the local tier is the log)."""
        return str(self.value("storage.mode"))
