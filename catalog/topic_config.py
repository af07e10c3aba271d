"""Topic configuration: Kafka's names, types, defaults and ranges, and `storage.mode`, which is ours.

Source: org.apache.kafka.storage.internals.log.LogConfig and org.apache.kafka.common.config.TopicConfig. A
setting that has no meaning here (`preallocate`, say) is still accepted, so that tools which send it go on
working. Only what was set is stored: a default may change with a version.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from catalog.errors import InvalidConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_DAY_MS: Final = 24 * 60 * 60 * 1000
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One topic setting: what it is called, what it may be, and what it is when nobody sets it."""

    name: str
    kind: str
    default: str
    lowest: float | None = None
    highest: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """The allowed values, for a message to people."""
        if self.kind == "boolean":
            return "true or false"
        if self.kind == "list":
            return f"one or more of {', '.join(self.choices)}, separated by commas"
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        article = "a number" if self.kind == "double" else "a whole number"
        return (
            f"{article} from {_plain(self.lowest)} to {_plain(self.highest)}"
            if self._narrow
            else self._open_range(article)
        )

    @property
    def _narrow(self) -> bool:
        return self.highest is not None and self.highest < _INT_MAX

    def _open_range(self, article: str) -> str:
        return f"{article} from {_plain(self.lowest)}" if self.lowest is not None else article

    def parse(self, text: str) -> bool | int | float | str:
        """The typed value of `text`; InvalidConfigError names setting, value and what is allowed."""
        try:
            return self._parse(text.strip())
        except ValueError:
            raise InvalidConfigError(
                f"topic setting {self.name} cannot be {text!r}",
                setting=self.name,
                remedy=f"give {self.allowed}",
            ) from None

    def _parse(self, text: str) -> bool | int | float | str:
        if self.kind == "boolean":
            return (
                {"true": True, "false": False}[text.lower()]
                if text.lower() in {"true", "false"}
                else _refuse()
            )
        if self.kind == "list":
            return self._parse_list(text)
        if self.kind == "string":
            return text if text in self.choices else _refuse()
        return self._parse_number(text)

    def _parse_list(self, text: str) -> str:
        items = [item.strip().lower() for item in text.split(",")]
        if not set(items) <= set(self.choices):
            _refuse()
        return ",".join(choice for choice in self.choices if choice in items)

    def _parse_number(self, text: str) -> int | float:
        if not _NUMBER.fullmatch(text):
            _refuse()
        value = float(text) if self.kind == "double" else int(text)
        width = {"int": _INT_MAX, "long": _LONG_MAX, "double": float("inf")}[self.kind]
        lowest = -width - 1 if self.lowest is None else self.lowest
        highest = width if self.highest is None else self.highest
        return value if lowest <= value <= highest else _refuse()


def _plain(bound: float | None) -> str:
    """A bound as people write it: a whole number without an exponent."""
    return str(int(bound)) if bound is not None and float(bound).is_integer() else f"{bound:g}"


def _refuse() -> int:
    raise ValueError


def _long(name: str, default: int, lowest: int | None = None) -> Setting:
    return Setting(name=name, kind="long", default=str(default), lowest=lowest)


def _int(name: str, default: int, lowest: int | None = None, highest: int | None = None) -> Setting:
    return Setting(name=name, kind="int", default=str(default), lowest=lowest, highest=highest)


def _choice(name: str, default: str, *choices: str) -> Setting:
    return Setting(name=name, kind="string", default=default, choices=choices)


def _boolean(name: str) -> Setting:
    return Setting(name=name, kind="boolean", default="false")


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        setting.name: setting
        for setting in (
            Setting(name="cleanup.policy", kind="list", default="delete", choices=("compact", "delete")),
            _choice(
                "compression.type", "producer", "uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"
            ),
            _int("compression.gzip.level", -1, -1, 9),
            _int("compression.lz4.level", 9, 1, 17),
            _int("compression.zstd.level", 3, -131072, 22),
            _long("delete.retention.ms", _DAY_MS, 0),
            _long("file.delete.delay.ms", 60_000, 0),
            _long("flush.messages", _LONG_MAX, 1),
            _long("flush.ms", _LONG_MAX, 0),
            _int("index.interval.bytes", 4096, 0),
            _long("local.retention.bytes", -2, -2),
            _long("local.retention.ms", -2, -2),
            _long("max.compaction.lag.ms", _LONG_MAX, 1),
            _int("max.message.bytes", 1_048_588, 0),
            _long("message.timestamp.after.max.ms", 3_600_000, 0),
            _long("message.timestamp.before.max.ms", _LONG_MAX, 0),
            _choice("message.timestamp.type", "CreateTime", "CreateTime", "LogAppendTime"),
            Setting(name="min.cleanable.dirty.ratio", kind="double", default="0.5", lowest=0, highest=1),
            _long("min.compaction.lag.ms", 0, 0),
            _int("min.insync.replicas", 1, 1),
            _boolean("preallocate"),
            _long("retention.bytes", -1),
            _long("retention.ms", 7 * _DAY_MS, -1),
            _int("segment.bytes", 2**30, 2**20),
            _int("segment.index.bytes", 10 * 2**20, 4),
            _long("segment.jitter.ms", 0, 0),
            _long("segment.ms", 7 * _DAY_MS, 1),
            _choice("storage.mode", "object", "object", "local"),
            _boolean("unclean.leader.election.enable"),
        )
    }
)


def _known(name: str) -> Setting:
    setting = SETTINGS.get(name)
    if setting is None:
        near = difflib.get_close_matches(name, SETTINGS, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"known settings are {', '.join(SETTINGS)}"
        raise InvalidConfigError(f"there is no topic setting {name!r}", setting=name, remedy=remedy)
    return setting


@lru_cache(maxsize=4096)
def _cleanup_policy(config: TopicConfig) -> str:
    """Remembered, because every partition of every fetch asks."""
    return str(config.value("cleanup.policy"))


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of one topic; `explicit` holds only what was set, sorted by name.

    Made by `TopicConfig.of`, which validates; the properties give typed values, defaults included. -1 and -2
    mean what they mean in Kafka (no limit; as the setting without `local.`, which is already resolved here).
    """

    explicit: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> TopicConfig:
        """Validate `settings`; InvalidConfigError names the setting, its value and what is allowed."""
        for name, text in settings.items():
            _known(name).parse(text)
        config = cls(tuple(sorted(settings.items())))
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise InvalidConfigError(
                f"min.compaction.lag.ms ({config.min_compaction_lag_ms}) is above max.compaction.lag.ms "
                f"({config.max_compaction_lag_ms})",
                setting="min.compaction.lag.ms",
                remedy="lower the one or raise the other",
            )
        return config

    def altered(self, changes: Mapping[str, str | None]) -> TopicConfig:
        """These settings with `changes` made; None takes a setting back to its default."""
        for name in changes:
            _known(name)
        merged: dict[str, str | None] = {**dict(self.explicit), **changes}
        return TopicConfig.of({name: text for name, text in merged.items() if text is not None})

    def text(self, name: str) -> str:
        """The setting as text, as DescribeConfigs shows it."""
        return dict(self.explicit).get(name, _known(name).default)

    def value(self, name: str) -> bool | int | float | str:
        """The setting as its type."""
        return _known(name).parse(self.text(name))

    def as_strings(self) -> dict[str, str]:
        """What was set, as it is stored."""
        return dict(self.explicit)

    def is_default(self, name: str) -> bool:
        """Whether nobody set it."""
        return name not in dict(self.explicit)

    def _whole(self, name: str) -> int:
        return int(self.value(name))

    @property
    def cleanup_policy(self) -> str:
        """delete, compact or both with a comma between: `compact,delete`, whatever order was given."""
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
