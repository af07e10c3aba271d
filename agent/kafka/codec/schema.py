"""The schema of each message in each version, derived from kio's generated dataclasses.

Only kio's schemas are used. Its reader rejects unknown tagged fields, which a broker must ignore, and copies
record bytes. The tests compare our codec with kio's.
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
"""Primitive types of a fixed size, with their format characters in the module `struct`."""

_ZEROS: dict[str, object] = {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None}


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
def versions_of(name: str) -> tuple[int, ...]:
    """Return the versions of a message (such as `list_offsets`) that have schemas."""
    package = import_module(f"kio.schema.{name}")
    return tuple(sorted(int(module.name[1:]) for module in iter_modules(package.__path__)))


@cache
def api_key_of(name: str) -> int:
    """Return Kafka's API key of a message."""
    return int(_entity(name, versions_of(name)[-1], "request").__api_key__)


@cache
def schema_of(name: str, version: int, direction: str) -> StructSchema:
    """Return the schema of a message; `direction` is `request` or `response`."""
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
    """Return the inner type of an annotation, whether it is an array, and whether it is nullable."""
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
        return -1 if field.default in {MISSING, None} else _default_value(field.default)
    if field.default is not MISSING:
        return _default_value(field.default)
    if is_nullable or is_dataclass(inner):
        return () if is_array and not is_nullable else None
    return () if is_array else _ZEROS.get(str(field.metadata["kafka_type"]), 0)


def _default_value(value: object) -> object:
    if is_dataclass(value):
        return None  # an absent tagged struct
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return value
