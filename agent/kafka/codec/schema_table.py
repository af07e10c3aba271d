"""Derivation of the table of schemas from kio's generated dataclasses.

    python -m agent.kafka.codec.schema_table

Only kio's schemas are used. Its reader rejects unknown tagged fields, which a broker must ignore, and copies
record bytes. The tests compare our codec with kio's.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin

import kio.schema
import orjson

from agent.kafka.codec.schema import TABLE, FieldSchema, StructSchema

if TYPE_CHECKING:
    from collections.abc import Sequence

_ZEROS: dict[str, object] = {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None}


class _Rows:
    """Numbered rows of the table, each of them once."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def number(self, row: object) -> int:
        """Return the number of a row; add it if it is new."""
        return self._numbers.setdefault(orjson.dumps(row), len(self._numbers))

    def lines(self) -> bytes:
        """Return the rows as a list in JSON, one a line."""
        return b"[\n" + b",\n".join(self._numbers) + b"\n]"


def table() -> bytes:
    """Return the table: JSON with three members.

    - `messages`: for each name the API's `key`, and for each direction the numbers of the structs by version
    - `structs`: for each struct, whether it is flexible, the number of its defaults, and its fields; a field
      is a list in the order of `FieldSchema`
    - `defaults`: the default of every field of any version, by name

    A default of `[]` is an empty tuple, and `{}` stands for empty bytes.
    """
    structs, defaults = _Rows(), _Rows()

    def encode(struct: StructSchema) -> int:
        rows = [
            [
                each.name,
                each.kind,
                None if each.struct is None else encode(each.struct),
                each.is_array,
                each.is_nullable,
                each.tag,
                _encoded(each.default),
            ]
            for each in struct.fields
        ]
        every = {name: _encoded(value) for name, value in struct.all_defaults.items()}
        return structs.number([struct.is_flexible, defaults.number(every), rows])

    messages = []
    for name in _names():
        versions = _versions(name)
        entry = {
            "key": int(_entity(name, versions[-1], "request").__api_key__),
            **{
                direction: {str(each): encode(derive(name, each, direction)) for each in versions}
                for direction in ("request", "response")
            },
        }
        messages.append(orjson.dumps(name) + b":" + orjson.dumps(entry))
    parts = (
        b'"messages":{\n' + b",\n".join(messages) + b"\n}",
        b'"structs":' + structs.lines(),
        b'"defaults":' + defaults.lines(),
    )
    return b"{" + b",\n".join(parts) + b"}\n"


def _encoded(value: object) -> object:
    if isinstance(value, (bytes, tuple)):
        if value:
            raise ValueError(f"the table has no form for the default {value!r}")
        return {} if isinstance(value, bytes) else []
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def derive(name: str, version: int, direction: str) -> StructSchema:
    """Return the schema of a message, derived from kio."""
    siblings = [_entity(name, each, direction) for each in _versions(name)]
    return _struct(_entity(name, version, direction), siblings)


def _names() -> list[str]:
    """Return the names of all requests, in alphabetical order."""
    root = Path(kio.schema.__path__[0])
    return sorted({path.parent.parent.name for path in root.glob("*/v*/request.py")})


@cache
def _versions(name: str) -> tuple[int, ...]:
    package = import_module(f"kio.schema.{name}")
    return tuple(sorted(int(module.name[1:]) for module in iter_modules(package.__path__)))


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


if __name__ == "__main__":
    Path(__file__).with_name(TABLE).write_bytes(table())
