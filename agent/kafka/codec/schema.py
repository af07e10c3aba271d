"""Reads kio's generated dataclasses as what they are: a description of each message in each version.

kio's own reader refuses tagged fields that it does not know, which a broker has to ignore, and copies record
bytes; so only its schemas are used here, and its codec is the oracle of the tests.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin

if TYPE_CHECKING:
    from collections.abc import Sequence

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
"""Primitive types of a fixed size, and how the module `struct` calls them."""

_ZEROS: dict[str, object] = {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSchema:
    """One field of one struct: `kind` is Kafka's name of a primitive type, `struct` stands in for others.

    `default` is what the field is where a message does not carry it.
    """

    name: str
    kind: str
    struct: StructSchema | None
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: object


def is_number(field: FieldSchema) -> bool:
    """Whether the field takes the same few bytes in every message."""
    return field.kind in NUMBER_CODES and not field.is_array


@dataclass(frozen=True, slots=True, kw_only=True)
class StructSchema:
    """A struct in one version. `all_defaults` has the fields of all versions."""

    fields: tuple[FieldSchema, ...]
    is_flexible: bool
    all_defaults: dict[str, object]

    @property
    def plain(self) -> list[FieldSchema]:
        """The fields that are always there, in their order."""
        return [field for field in self.fields if field.tag is None]

    @property
    def tagged(self) -> list[FieldSchema]:
        """The fields that have a tag, by their tags."""
        return sorted((field for field in self.fields if field.tag is not None), key=_tag)


def _tag(field: FieldSchema) -> int:
    return -1 if field.tag is None else field.tag


@cache
def versions_of(name: str) -> tuple[int, ...]:
    """The versions of a message, such as `list_offsets`, that there are schemas for."""
    package = import_module(f"kio.schema.{name}")
    return tuple(sorted(int(module.name[1:]) for module in iter_modules(package.__path__)))


@cache
def api_key_of(name: str) -> int:
    """The number by which a message is called."""
    return int(_entity(name, versions_of(name)[-1], "request").__api_key__)


@cache
def schema_of(name: str, version: int, direction: str) -> StructSchema:
    """What a `request` or `response` looks like."""
    siblings = [_entity(name, each, direction) for each in versions_of(name)]
    return _struct(_entity(name, version, direction), siblings)


def _entity(name: str, version: int, direction: str) -> Any:  # noqa: ANN401  # generated, one class for each
    module = import_module(f"kio.schema.{name}.v{version}.{direction}")
    wanted = name.replace("_", "") + direction
    return next(value for key, value in vars(module).items() if key.lower() == wanted)


def _struct(entity: Any, siblings: Sequence[Any]) -> StructSchema:  # noqa: ANN401  # as above
    by_name: dict[str, list[Field[Any]]] = {}
    for sibling in siblings:
        for field in fields(sibling):
            by_name.setdefault(field.name, []).append(field)
    return StructSchema(
        fields=tuple(_field(field, by_name[field.name]) for field in fields(entity)),
        is_flexible=bool(entity.__flexible__),
        all_defaults={name: _default(versions[-1]) for name, versions in by_name.items()},
    )


def _field(field: Field[Any], versions: Sequence[Field[Any]]) -> FieldSchema:
    inner, is_array, is_nullable = _unfold(field.type)
    nested = None
    if is_dataclass(inner):
        nested = _struct(inner, [_unfold(version.type)[0] for version in versions])
    default = _default(versions[-1])
    if default is None and not is_nullable and (is_array or nested is None):
        default = () if is_array else _ZEROS.get(str(field.metadata["kafka_type"]), 0)
    return FieldSchema(
        name=field.name,
        kind="struct" if nested else str(field.metadata["kafka_type"]),
        struct=nested,
        is_array=is_array,
        is_nullable=is_nullable and "tag" not in field.metadata,
        tag=field.metadata.get("tag"),
        default=default,
    )


def _unfold(annotation: Any) -> tuple[Any, bool, bool]:  # noqa: ANN401  # any type expression
    """(inner type, whether it is an array, whether it may be null)."""
    is_nullable = False
    if get_origin(annotation) is UnionType:
        is_nullable = True
        (annotation,) = (each for each in get_args(annotation) if each is not NoneType)
    if get_origin(annotation) is not tuple:
        return annotation, False, is_nullable
    inner = get_args(annotation)[0]
    if get_origin(inner) is UnionType:
        (inner,) = (each for each in get_args(inner) if each is not NoneType)
    return inner, True, is_nullable


def _default(field: Field[Any]) -> object:
    inner, is_array, is_nullable = _unfold(field.type)
    if field.metadata.get("kafka_type") == "datetime_i64":
        return -1 if field.default in {MISSING, None} else _plain(field.default)
    if field.default is not MISSING:
        return _plain(field.default)
    if is_nullable or is_dataclass(inner):
        return () if is_array and not is_nullable else None
    return () if is_array else _ZEROS.get(str(field.metadata["kafka_type"]), 0)


def _plain(value: object) -> object:
    if is_dataclass(value):
        return None  # a tagged struct that is not there
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return value
