"""The schema of each message in each version, from a table.

`schemas.json` is derived from kio's generated dataclasses by `schema_table`. An agent does not import them:
Python compiles the methods of each one when it is imported. An agent would spend a second of processor time
on that, and the first request of each API would wait for the dataclasses of all versions of the API.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import orjson

TABLE = "schemas.json"
"""The file of the table, in this package."""

NUMBER_CODES = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "float64": "d",
    "bool": "?",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
"""Primitive types of a fixed size, with their format characters in the module `struct`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSchema:
    """One field of one struct. `kind` is Kafka's name of a primitive type, or "struct" if `struct` is set.

    `default` is the field's value in a message of a version without the field.
    """

    name: str
    kind: str
    struct: StructSchema | None
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: object


def is_number(field: FieldSchema) -> bool:
    """Return True if the field has a fixed size."""
    return field.kind in NUMBER_CODES and not field.is_array


@dataclass(frozen=True, slots=True, kw_only=True)
class StructSchema:
    """A struct in one version. `all_defaults` has the default of every field of any version."""

    fields: tuple[FieldSchema, ...]
    is_flexible: bool
    all_defaults: dict[str, object]

    @property
    def untagged(self) -> list[FieldSchema]:
        """The fields without a tag, in order."""
        return [field for field in self.fields if field.tag is None]

    @property
    def tagged(self) -> list[FieldSchema]:
        """The fields with a tag, ordered by tag."""
        return sorted((field for field in self.fields if field.tag is not None), key=_tag)


def _tag(field: FieldSchema) -> int:
    return -1 if field.tag is None else field.tag


@cache
def _table() -> dict[str, Any]:
    """Return the table as `schema_table.table` describes it."""
    table: dict[str, Any] = orjson.loads((resources.files("agent.kafka.codec") / TABLE).read_bytes())
    return table


@cache
def versions_of(name: str) -> tuple[int, ...]:
    """Return the versions of a message (such as `list_offsets`) that have schemas."""
    return tuple(sorted(map(int, _table()["messages"][name]["request"])))


def api_key_of(name: str) -> int:
    """Return Kafka's API key of a message."""
    return int(_table()["messages"][name]["key"])


def schema_of(name: str, version: int, direction: str) -> StructSchema:
    """Return the schema of a message; `direction` is `request` or `response`."""
    return _struct(_table()["messages"][name][direction][str(version)])


@cache
def _struct(number: int) -> StructSchema:
    is_flexible, defaults, fields = _table()["structs"][number]
    return StructSchema(
        fields=tuple(map(_field, fields)), is_flexible=is_flexible, all_defaults=_defaults(defaults)
    )


def _field(row: list[Any]) -> FieldSchema:
    name, kind, struct, is_array, is_nullable, tag, default = row
    return FieldSchema(
        name=name,
        kind=kind,
        struct=None if struct is None else _struct(struct),
        is_array=is_array,
        is_nullable=is_nullable,
        tag=tag,
        default=_default(default),
    )


@cache
def _defaults(number: int) -> dict[str, object]:
    return {name: _default(value) for name, value in _table()["defaults"][number].items()}


def _default(value: object) -> object:
    """Return a default: JSON has neither tuples nor bytes, and all of these are empty."""
    if isinstance(value, list):
        return ()
    return b"" if isinstance(value, dict) else value
