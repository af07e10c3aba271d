"""What is simulated: topics in classes of equal partitions, the agents they are sent to, and for how long.

A workload comes from TOML; `docs/explanation/cost.md` explains every key. Topics have Kafka's settings under
`config`, checked like those of a real topic.
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
# A record's own varints beside key and value (KIP-98): length, attributes, deltas, sizes, no headers.
_RECORD_OVERHEAD_BYTES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicClass:
    """Topics that are alike: `topics` of them with `partitions` each, all partitions of one rate.

    `mb_per_second` is what producers send to the whole class, keys and values before compression, in 10^6
    bytes. `keys` are those of one partition; `update_ratio` is the share of records whose key is drawn from
    them, by `key_distribution`; each of the others has a key of its own that never comes again.
    `tombstone_ratio` is the share of records without a value. `consumers` read everything once at the tail.
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
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"topic class {self.name!r}"
        for name in ("topics", "partitions", "record_bytes", "batch_records", "keys"):
            _at_least(where, name, getattr(self, name), 1)
        for name in ("key_bytes", "consumers", "zipf_exponent"):
            _at_least(where, name, getattr(self, name), 0)
        for name in ("update_ratio", "tombstone_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInputError(
                    f"{where}: {name} is {getattr(self, name)}", remedy="give a share from 0 to 1"
                )
        if self.mb_per_second <= 0 or self.compression_ratio <= 0:
            raise InvalidInputError(
                f"{where}: mb_per_second and compression_ratio must be above 0",
                remedy="leave out a class that gets nothing",
            )
        if self.key_distribution not in DISTRIBUTIONS:
            raise InvalidInputError(
                f"{where}: key_distribution is {self.key_distribution!r}",
                remedy=f"give one of {', '.join(DISTRIBUTIONS)}",
            )
        TopicConfig.of(self.config)

    @property
    def settings(self) -> TopicConfig:
        """The topics' settings, defaults included."""
        return TopicConfig.of(self.config)

    @property
    def partition_count(self) -> int:
        """Partitions of all topics of the class."""
        return self.topics * self.partitions

    @property
    def stored_record_bytes(self) -> float:
        """What a record takes in a segment file: compressed, with its share of the batch header."""
        plain = self.record_bytes + _RECORD_OVERHEAD_BYTES
        return plain / self.compression_ratio + _BATCH_HEADER_BYTES / self.batch_records

    @property
    def records_per_second(self) -> float:
        """Records that one partition gets."""
        return self.mb_per_second * MEGABYTE / self.record_bytes / self.partition_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """All that a simulation needs but the planner's settings.

    With `zone_aware` clients, a partition's producers and consumers go to the agents of their own zone, so
    that one agent in each of the `zones` has a share of it. `planning_seconds` pass between two plans.
    `tasks` run at a time (0: as many as there are jobs), each moving `task_mb_per_second`.
    """

    name: str
    description: str = ""
    days: float = 365.0
    agents: int = 3
    zones: int = 3
    zone_aware: bool = True
    flush_interval_ms: int = 250
    flush_bytes: int = 8 * 2**20
    planning_seconds: float = 10.0
    grace_seconds: float = 60.0
    tasks: int = 0
    task_mb_per_second: float = 50.0
    topics: tuple[TopicClass, ...] = ()

    def __post_init__(self) -> None:
        for name in ("agents", "zones", "flush_interval_ms", "flush_bytes"):
            _at_least(f"workload {self.name!r}", name, getattr(self, name), 1)
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
        """How many agents take records of one partition."""
        return self.zones if self.zone_aware else 1

    @property
    def mb_per_second(self) -> float:
        """What all producers send, before compression."""
        return sum(each.mb_per_second for each in self.topics)

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.days * 86_400


def named_workloads() -> tuple[str, ...]:
    """The workloads that come with the package."""
    folder = resources.files("cost_model.workload") / "workloads"
    return tuple(sorted(each.name.removesuffix(".toml") for each in folder.iterdir() if each.is_file()))


def load_workload(named: str, file: Path | None = None) -> Workload:
    """The workload that comes with the package under that name, or the one in `file`."""
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
    """The workload in TOML; InvalidInputError names what is wrong in `origin`, and the remedy."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as failure:
        raise InvalidInputError(
            f"workload {origin} is not TOML: {failure}",
            remedy="correct it; docs/explanation/cost.md has an example",
        ) from None
    tables = values.pop("topics", [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise InvalidInputError(
            f"workload {origin}: topics is no list of tables", remedy="begin each class with [[topics]]"
        )
    topics = tuple(
        _made(TopicClass, each, f"workload {origin}, topics[{index}]") for index, each in enumerate(tables)
    )
    return _made(Workload, {"name": origin, **values, "topics": topics}, f"workload {origin}")


_T = TypeVar("_T", TopicClass, Workload)


def _made(kind: type[_T], values: Mapping[str, Any], where: str) -> _T:
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
    good: bool
    match wanted:
        case "int":
            good, words = isinstance(value, int) and not isinstance(value, bool), "a whole number"
        case "float":
            number = isinstance(value, int | float) and not isinstance(value, bool)
            good, words = number and math.isfinite(value), "a number"  # type: ignore[arg-type]  # it is one
        case "bool":
            good, words = isinstance(value, bool), "true or false"
        case "str":
            good, words = isinstance(value, str), "a text"
        case "Mapping[str, str]":
            texts = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
            good, words = texts, 'a table of texts, such as {"retention.ms" = "86400000"}'
        case _:
            return
    if not good:
        raise InvalidInputError(f"{where}: {name} is {value!r}", remedy=f"give {words}")


def _at_least(where: str, name: str, value: float, least: float) -> None:
    if value < least:
        raise InvalidInputError(f"{where}: {name} is {value}", remedy=f"give at least {least}")
