"""The largest requests of each API and version, made from the schemas of their messages."""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from agent.kafka.codec import Message, Output, Struct
from agent.kafka.codec.schema import schema_of

if TYPE_CHECKING:
    from agent.kafka.api_definition import Api
    from agent.kafka.codec.schema import FieldSchema, StructSchema

_TEXT_BYTES: Final = 30_000
_BYTES: Final = 1_000_000
_ANY_ID: Final = UUID(int=7)


class Shape(StrEnum):
    """The large part of a request."""

    WIDE = "many items in the first array of each level that has one"
    DEEP = "one item at each level, and many at the last one"
    TEXT = "a few items with texts and bytes as long as possible"


def request(api: Api, version: int, shape: Shape) -> bytes:
    """Return the frame of a request with about as many items as the API accepts, or with long texts."""
    schema = schema_of(api.name, version, "request")
    count = 20 if shape is Shape.TEXT else api.max_items - 100
    message, out = Message.of(api.name, version), Output()
    message.write_request(out, _build(schema, shape, count))
    header = struct.pack(">hhih", api.key, version, 1, -1) + (b"\0" if message.is_flexible else b"")
    body = header + b"".join(map(bytes, out.buffers()))
    return struct.pack(">i", len(body)) + body


def _build(schema: StructSchema, shape: Shape, count: int) -> Struct:
    arrays = [field for field in schema.untagged if field.is_array]
    large = next(iter(arrays), None)
    if shape is Shape.DEEP:
        large = next((field for field in arrays if field.struct is not None), large)
    values: dict[str, Any] = {}
    for field in schema.untagged:
        if field is large:
            values[field.name] = _items(field, shape, count)
        elif field.is_array:
            values[field.name] = []
        elif field.struct is not None:
            values[field.name] = _build(field.struct, shape, count)
        else:
            values[field.name] = _scalar(field, shape)
    return Struct(**values)


def _items(field: FieldSchema, shape: Shape, count: int) -> list[Any]:
    if field.struct is None:
        return [_scalar(field, shape)] * count
    has_arrays = any(each.is_array for each in field.struct.untagged)
    if shape is Shape.DEEP and has_arrays:
        return [_build(field.struct, shape, count)]
    return [_build(field.struct, shape, 0)] * count


def _scalar(field: FieldSchema, shape: Shape) -> object:
    is_long = shape is Shape.TEXT
    if field.kind == "string":
        return "x" * (_TEXT_BYTES if is_long else 1)
    if field.kind in {"bytes", "records"}:
        return bytes(_BYTES // 20 if is_long else 1)
    if field.kind == "uuid":
        return _ANY_ID
    return field.kind == "bool" or 1
