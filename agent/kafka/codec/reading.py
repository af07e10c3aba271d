"""From bytes to structs. Every length is checked against the message's end before anything is allocated."""

from __future__ import annotations

import struct
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from agent.kafka.codec.schema import NUMBER_CODES, is_number
from agent.kafka.codec.struct import Struct
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.kafka.codec.schema import FieldSchema, StructSchema

    Read = Callable[["Cursor"], Any]

_MAX_ITEMS = 400_000
_MAX_VARINT_BYTES = 5
MAX_STRING_BYTES: Final = 0x7FFF
"""Bytes of a string at most, also of a compact one. Source: SchemaGenerator of Kafka's message generator."""


class MalformedMessageError(InvalidInputError):
    """The bytes are not a valid message."""


class Cursor:
    """A position in a message.

    All arrays and tagged fields of one message share a bound on their items, because a few bytes could become
    many objects, and even an item that is skipped takes time.
    """

    __slots__ = ("data", "items_left", "position")

    def __init__(self, data: memoryview, position: int = 0, items: int = _MAX_ITEMS) -> None:
        self.data = data
        self.position = position
        self.items_left = items

    def take(self, count: int) -> memoryview:
        """Return a view of the next `count` bytes."""
        start = self.position
        end = start + count
        if count < 0 or end > len(self.data):
            raise MalformedMessageError(
                f"a length of {count} at byte {start} exceeds the message's {len(self.data)} bytes"
            )
        self.position = end
        return self.data[start:end]

    def charge(self, items: int, what: str) -> None:
        """Count items before they are read; raise MalformedMessageError beyond the bound."""
        self.items_left -= items
        if items > len(self.data) - self.position or self.items_left < 0:
            raise MalformedMessageError(f"{items} {what} at byte {self.position} are too many")


def _numbers(codes: str) -> Callable[[Cursor], tuple[Any, ...]]:
    """Return a reader of consecutive numbers, in one step."""
    layout = struct.Struct(f">{codes}")
    unpack, size = layout.unpack_from, layout.size

    def read(cursor: Cursor) -> tuple[Any, ...]:
        position = cursor.position
        try:
            values = unpack(cursor.data, position)
        except struct.error:
            raise MalformedMessageError(f"the message ends within a number at byte {position}") from None
        cursor.position = position + size
        return values

    return read


def _number(code: str) -> Read:
    layout = struct.Struct(f">{code}")
    unpack, size = layout.unpack_from, layout.size

    def read(cursor: Cursor) -> Any:  # noqa: ANN401  # int, bool or float
        position = cursor.position
        try:
            (value,) = unpack(cursor.data, position)
        except struct.error:
            raise MalformedMessageError(f"the message ends within a number at byte {position}") from None
        cursor.position = position + size
        return value

    return read


read_int8 = _number("b")
read_int16 = _number("h")
read_int32 = _number("i")
_FIXED: dict[str, Read] = {kind: _number(code) for kind, code in NUMBER_CODES.items()}


def read_varint(cursor: Cursor) -> int:
    """Read an unsigned varint of at most 32 bits."""
    data, position = cursor.data, cursor.position
    value = 0
    try:
        first = data[position]
        if first < 0x80:
            cursor.position = position + 1
            return first
        for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                cursor.position = position
                return value
    except IndexError:
        raise MalformedMessageError(f"the message ends within a varint at byte {position}") from None
    raise MalformedMessageError(f"a varint before byte {position} does not end")


def _compact_length(cursor: Cursor) -> int:
    return read_varint(cursor) - 1


def _compact_string_length(cursor: Cursor) -> int:
    length = _compact_length(cursor)
    if length > MAX_STRING_BYTES:
        raise MalformedMessageError(
            f"a string of {length} bytes at byte {cursor.position} is longer than {MAX_STRING_BYTES}"
        )
    return length


def _uuid(cursor: Cursor) -> UUID | None:
    raw = bytes(cursor.take(16))
    return UUID(bytes=raw) if any(raw) else None


def read_string(cursor: Cursor, length: int) -> str:
    """Read a UTF-8 string of that many bytes."""
    try:
        return str(cursor.take(length), "utf-8")
    except UnicodeDecodeError:
        raise MalformedMessageError(f"the text before byte {cursor.position} is not UTF-8") from None


def _view(cursor: Cursor, length: int) -> memoryview:
    return cursor.take(length)


def _bytes(cursor: Cursor, length: int) -> bytes:
    return bytes(cursor.take(length))


def _sized(read_length: Read, body: Callable[[Cursor, int], Any], *, is_nullable: bool) -> Read:
    def read(cursor: Cursor) -> Any:  # noqa: ANN401  # the body's type
        length = read_length(cursor)
        if length < 0:
            if is_nullable and length == -1:
                return None
            raise MalformedMessageError(f"a length before byte {cursor.position} is {length}")
        return body(cursor, length)

    return read


_BODIES: dict[str, Callable[[Cursor, int], Any]] = {"string": read_string, "bytes": _bytes, "records": _view}


def _primitive(field: FieldSchema, *, is_flexible: bool) -> Read:
    if field.kind == "uuid":
        return _uuid
    if field.kind in _FIXED:
        return _FIXED[field.kind]
    if field.kind == "string":
        read_length = _compact_string_length if is_flexible else read_int16
    else:
        read_length = _compact_length if is_flexible else read_int32
    nullable = field.is_nullable and not field.is_array
    return _sized(read_length, _BODIES[field.kind], is_nullable=nullable)


def _array(read_item: Read, *, is_flexible: bool, is_nullable: bool) -> Read:
    def items(cursor: Cursor, count: int) -> list[Any]:
        cursor.charge(count, "items of an array")
        return [read_item(cursor) for _ in range(count)]

    return _sized(_compact_length if is_flexible else read_int32, items, is_nullable=is_nullable)


def _nullable_struct(read_struct: Read) -> Read:
    """Return a reader of a struct behind a byte that says whether it is present (KIP-893)."""

    def read(cursor: Cursor) -> Struct | None:
        return read_struct(cursor) if read_int8(cursor) >= 0 else None

    return read


def _field_reader(field: FieldSchema, *, is_flexible: bool) -> Read:
    if field.struct is None:
        read = _primitive(field, is_flexible=is_flexible)
    else:
        read = struct_reader(field.struct)
        if field.is_nullable and not field.is_array:
            read = _nullable_struct(read)
    if not field.is_array:
        return read
    return _array(read, is_flexible=is_flexible, is_nullable=field.is_nullable)


def read_tags(cursor: Cursor, known: dict[int, tuple[str, Read]], values: dict[str, Any]) -> None:
    """Read tagged fields into `values`. Unknown fields are skipped (KIP-482), and count as items."""
    count = read_varint(cursor)
    if count:
        cursor.charge(count, "tagged fields")
    for _ in range(count):
        tag = read_varint(cursor)
        size = read_varint(cursor)
        start = cursor.position
        cursor.take(size)
        if tag in known:
            name, read = known[tag]
            cursor.position = start
            values[name] = read(cursor)
            if cursor.position > start + size:
                raise MalformedMessageError(f"tagged field {tag} at byte {start} exceeds its {size} bytes")
            cursor.position = start + size


def _steps(schema: StructSchema) -> list[tuple[str | tuple[str, ...], Read]]:
    """Return the readers of a struct's untagged fields, each with the name or names of its fields.

    Consecutive numbers share a reader.
    """
    steps: list[tuple[str | tuple[str, ...], Read]] = []
    for numbers, group in groupby(schema.untagged, key=is_number):
        fields = list(group)
        if numbers and len(fields) > 1:
            codes = "".join(NUMBER_CODES[field.kind] for field in fields)
            steps.append((tuple(field.name for field in fields), _numbers(codes)))
        else:
            steps += [(field.name, _field_reader(field, is_flexible=schema.is_flexible)) for field in fields]
    return steps


def struct_reader(schema: StructSchema) -> Read:
    """Return the reader of that struct."""
    flexible = schema.is_flexible
    steps = _steps(schema)
    tags = {
        field.tag: (field.name, _field_reader(field, is_flexible=flexible))
        for field in schema.tagged
        if field.tag is not None
    }
    carried = {field.name for field in schema.untagged}
    defaults = {name: value for name, value in schema.all_defaults.items() if name not in carried}

    def read(cursor: Cursor) -> Struct:
        values: dict[str, Any] = defaults.copy()
        for name, read_field in steps:
            if name.__class__ is str:
                values[name] = read_field(cursor)
            else:
                values.update(zip(name, read_field(cursor), strict=True))
        if flexible:
            read_tags(cursor, tags, values)
        result = Struct.__new__(Struct)
        result.__dict__ = values
        return result

    return read
