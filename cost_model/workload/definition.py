"""Definition of a workload: classes of topics, the agents that serve them, and the simulated time.

Workloads are written in TOML; `docs/explanation/cost.md` explains every key. Topics have Kafka's settings
under `config`, which are validated like those of a real topic.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from dataclasses import MISSING, dataclass, field, fields
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, TypeVar

from catalog.config.values import TopicConfig
from core.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MEGABYTE: Final = 1_000_000
DISTRIBUTIONS: Final = ("uniform", "zipf")
_BATCH_HEADER_BYTES: Final = 61
# Bytes of a record other than key and value (KIP-98): length, attributes, deltas, sizes, no headers.
_RECORD_OVERHEAD_BYTES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicClass:
    """Equal topics: `topics` of them with `partitions` partitions each, all with the same rate.

    - `mb_per_second`: what producers send to the whole class in 10^6 bytes, keys and values before
      compression.
    - `keys`: the keys of one partition.
    - `update_ratio`: the share of records whose key is drawn from `keys`, by `key_distribution`. Each other
      record has a new key that never occurs again.
    - `tombstone_ratio`: the share of records without a value.
    - `consumers`: consumer groups that read every record once, at the tail.
    - `in_flight_bytes`: what the producers of the class may have in flight at one agent; 0: no limit.
    """

    name: str
    topics: int = 1
    partitions: int = 1
    mb_per_second: float = 1.0
    record_bytes: int = 1000
    key_bytes: int = 36
    batch_records: int = 10
    compression_ratio: float = 1.0
    keys: int = 100_000
    key_distribution: str = "uniform"
    zipf_exponent: float = 1.0
    update_ratio: float = 1.0
    tombstone_ratio: float = 0.0
    consumers: int = 1
    in_flight_bytes: int = 0
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"topic class {self.name!r}"
        for name in ("topics", "partitions", "record_bytes", "batch_records", "keys"):
            _require_at_least(where, name, getattr(self, name), 1)
        for name in ("key_bytes", "consumers", "zipf_exponent", "in_flight_bytes"):
            _require_at_least(where, name, getattr(self, name), 0)
        for name in ("update_ratio", "tombstone_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInputError(
                    f"{where}: {name} is {getattr(self, name)}", remedy="give a share from 0 to 1"
                )
        if self.mb_per_second <= 0 or self.compression_ratio <= 0:
            raise InvalidInputError(
                f"{where}: mb_per_second and compression_ratio must be above 0",
                remedy="remove classes without records",
            )
        if self.key_distribution not in DISTRIBUTIONS:
            raise InvalidInputError(
                f"{where}: key_distribution is {self.key_distribution!r}",
                remedy=f"give one of {', '.join(DISTRIBUTIONS)}",
            )
        TopicConfig.of(self.config)

    @property
    def settings(self) -> TopicConfig:
        """Configuration of the topics, with defaults."""
        return TopicConfig.of(self.config)

    @property
    def partition_count(self) -> int:
        """Partitions of all topics of the class."""
        return self.topics * self.partitions

    @property
    def stored_record_bytes(self) -> float:
        """Size of a record in a segment file: compressed, with its share of the batch header."""
        plain = self.record_bytes + _RECORD_OVERHEAD_BYTES
        return plain / self.compression_ratio + _BATCH_HEADER_BYTES / self.batch_records

    @property
    def records_per_second(self) -> float:
        """Records that one partition receives."""
        return self.mb_per_second * MEGABYTE / self.record_bytes / self.partition_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything that a simulation needs except the planner's settings.

    If clients are `zone_aware`, a partition's producers and consumers use the agents of their zone. One
    agent in each zone receives a share of it. The planner runs every `planning_seconds`. At most `tasks`
    tasks run at a time (0 sets no limit), and each reads and writes `task_mb_per_second`. A PUT takes
    `put_ms`, and a commit `commit_ms`. The others are settings of agents.
    """

    name: str
    description: str = ""
    days: float = 365.0
    agents: int = 3
    zones: int = 3
    zone_aware: bool = True
    flush_interval_ms: int = 250
    flush_bytes: int = 8 * 2**20
    early_close_bytes: int = 64 * 2**10
    early_puts_per_second: int = 100
    early_puts_per_gb: int = 2000
    put_ms: float = 30.0
    commit_ms: float = 10.0
    planning_seconds: float = 10.0
    grace_seconds: float = 60.0
    tasks: int = 0
    task_mb_per_second: float = 50.0
    topics: tuple[TopicClass, ...] = ()

    def __post_init__(self) -> None:
        for name in ("agents", "zones", "flush_interval_ms", "flush_bytes", "early_close_bytes"):
            _require_at_least(f"workload {self.name!r}", name, getattr(self, name), 1)
        for name in ("early_puts_per_second", "early_puts_per_gb", "put_ms", "commit_ms"):
            _require_at_least(f"workload {self.name!r}", name, getattr(self, name), 0)
        for name in ("days", "planning_seconds", "task_mb_per_second"):
            if not getattr(self, name) > 0:
                raise InvalidInputError(
                    f"workload {self.name!r}: {name} is {getattr(self, name)}", remedy="give more than 0"
                )
        if not self.topics:
            raise InvalidInputError(
                f"workload {self.name!r} has no topics", remedy="give at least one [[topics]] table"
            )
        if self.agents < self.zones:
            raise InvalidInputError(
                f"workload {self.name!r} has {self.agents} agents in {self.zones} zones",
                remedy="give at least one agent for each zone, or fewer zones",
            )

    @property
    def partition_count(self) -> int:
        """Partitions of all classes."""
        return sum(each.partition_count for each in self.topics)

    @property
    def agents_of_partition(self) -> int:
        """Number of agents that receive records of one partition."""
        return self.zones if self.zone_aware else 1

    @property
    def mb_per_second(self) -> float:
        """What all producers send, before compression."""
        return sum(each.mb_per_second for each in self.topics)

    @property
    def seconds(self) -> float:
        """Simulated time."""
        return self.days * 86_400


def named_workloads() -> tuple[str, ...]:
    """Return the names of the built-in workloads."""
    folder = resources.files("cost_model.workload") / "workloads"
    return tuple(sorted(each.name.removesuffix(".toml") for each in folder.iterdir() if each.is_file()))


def load_workload(named: str, file: Path | None = None) -> Workload:
    """Return the built-in workload of that name, or the one in `file`."""
    if file is not None:
        try:
            return parse_workload(file.read_text(), str(file))
        except OSError as failure:
            raise NotFoundError(
                f"workload file {file} cannot be read: {failure.strerror}",
                remedy=f"name a TOML file, or one of {', '.join(named_workloads())}",
            ) from None
    if named not in named_workloads():
        near = difflib.get_close_matches(named, named_workloads(), n=1)
        remedy = (
            f"did you mean {near[0]}?" if near else f"give a TOML file, or {', '.join(named_workloads())}"
        )
        raise NotFoundError(f"there is no workload named {named!r}", remedy=remedy)
    text = (resources.files("cost_model.workload") / "workloads" / f"{named}.toml").read_text()
    return parse_workload(text, named)


def parse_workload(text: str, origin: str) -> Workload:
    """Return the workload in a TOML text; raise InvalidInputError with a remedy if it is invalid."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as failure:
        raise InvalidInputError(
            f"workload {origin} is not TOML: {failure}",
            remedy="correct the file; docs/explanation/cost.md has an example",
        ) from None
    tables = values.pop("topics", [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise InvalidInputError(
            f"workload {origin}: topics is not a list of tables", remedy="begin each class with [[topics]]"
        )
    topics = tuple(
        _build(TopicClass, each, f"workload {origin}, topics[{index}]") for index, each in enumerate(tables)
    )
    return _build(Workload, {"name": origin, **values, "topics": topics}, f"workload {origin}")


_T = TypeVar("_T", TopicClass, Workload)


def _build(kind: type[_T], values: Mapping[str, Any], where: str) -> _T:
    known = {each.name: each for each in fields(kind)}
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"known keys are {', '.join(known)}"
            raise InvalidInputError(f"{where}: there is no key {name!r}", remedy=remedy)
        _check_type(where, name, value, str(known[name].type))
    missing = [
        name
        for name, each in known.items()
        if name not in values and each.default is MISSING and each.default_factory is MISSING
    ]
    if missing:
        raise InvalidInputError(f"{where}: {missing[0]} is missing", remedy=f"give {missing[0]}")
    return kind(**values)


def _check_type(where: str, name: str, value: object, wanted: str) -> None:
    valid: bool
    match wanted:
        case "int":
            valid, expected = isinstance(value, int) and not isinstance(value, bool), "a whole number"
        case "float":
            number = isinstance(value, int | float) and not isinstance(value, bool)
            valid, expected = number and math.isfinite(value), "a number"  # type: ignore[arg-type]  # it is one
        case "bool":
            valid, expected = isinstance(value, bool), "true or false"
        case "str":
            valid, expected = isinstance(value, str), "a string"
        case "Mapping[str, str]":
            all_strings = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
            valid, expected = all_strings, 'a table of strings, such as {"retention.ms" = "86400000"}'
        case _:
            return
    if not valid:
        raise InvalidInputError(f"{where}: {name} is {value!r}", remedy=f"give {expected}")


def _require_at_least(where: str, name: str, value: float, minimum: float) -> None:
    if value < minimum:
        raise InvalidInputError(f"{where}: {name} is {value}", remedy=f"give at least {minimum}")
