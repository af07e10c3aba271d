"""From structs to buffers. Record bytes are not copied: they remain separate buffers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, Any

from agent.kafka.codec.schema import NUMBER_CODES, is_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.codec.schema import FieldSchema, StructSchema
    from agent.kafka.codec.struct import Struct

    Write = Callable[["Output", Any], None]

Buffers = list[bytes | bytearray | memoryview]

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_THREE_BYTES = struct.Struct("BBB")
_BUFFERS = (bytes, bytearray, memoryview)
_ZERO_UUID = bytes(16)
_LENGTH_BYTES = 4


class Output:
    """A message under construction, as a list of buffers. Record bytes are separate buffers."""

    __slots__ = ("_closed", "size", "tail")

    def __init__(self) -> None:
        self._closed: list[bytes | bytearray | memoryview] = []
        self.tail = bytearray()
        self.size = 0

    def add(self, buffers: Sequence[bytes | bytearray | memoryview], size: int) -> None:
        """Append buffers without a copy; `size` is the sum of their lengths."""
        if not buffers:
            return
        tail, closed = self.tail, self._closed
        self.size += len(tail) + size
        closed.append(tail)
        closed += buffers
        self.tail = bytearray()

    def buffers(self) -> list[bytes | bytearray | memoryview]:
        """Return all buffers, in order."""
        return [*self._closed, self.tail]

    def __len__(self) -> int:
        return self.size + len(self.tail)


def begin_response(correlation_id: int, *, is_flexible: bool) -> Output:
    """Start a response frame with its header; `finish_response` fills in the length."""
    out = Output()
    out.tail += bytes(_LENGTH_BYTES) + correlation_id.to_bytes(4, "big", signed=True)
    if is_flexible:
        out.tail.append(0)
    return out


def finish_response(out: Output) -> Buffers:
    """Return a whole response frame, including its length."""
    size = len(out) - _LENGTH_BYTES
    buffers = out.buffers()
    first = buffers[0]
    assert isinstance(first, bytearray)
    first[:_LENGTH_BYTES] = size.to_bytes(_LENGTH_BYTES, "big")
    return buffers


def _fixed(code: str) -> Write:
    pack = struct.Struct(f">{code}").pack

    def write(out: Output, value: Any) -> None:  # noqa: ANN401  # int, bool or float
        out.tail += pack(value)

    return write


write_int8 = _fixed("b")
_FIXED: dict[str, Write] = {kind: _fixed(code) for kind, code in NUMBER_CODES.items()}


def write_varint(out: Output, value: int) -> None:
    """Write an unsigned varint."""
    tail = out.tail
    if value < 0x80:
        tail.append(value)
        return
    if 0x4000 <= value < 0x20_0000:  # the size of most partitions' records; one step for it
        tail += _THREE_BYTES.pack(value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14)
        return
    while value >= 0x80:
        tail.append(value & 0x7F | 0x80)
        value >>= 7
    tail.append(value)


def _write_uuid(out: Output, value: Any) -> None:  # noqa: ANN401  # UUID or None
    out.tail += _ZERO_UUID if value is None else value.bytes


def _write_int16(out: Output, value: int) -> None:
    out.tail += _INT16.pack(value)


def _write_int32(out: Output, value: int) -> None:
    out.tail += _INT32.pack(value)


def _write_compact(out: Output, value: int) -> None:
    write_varint(out, value + 1)


def write_count(out: Output, count: int, *, is_flexible: bool) -> None:
    """Write the number of items of an array."""
    (_write_compact if is_flexible else _write_int32)(out, count)


def write_encoded(out: Output, text: bytes, *, is_flexible: bool) -> None:
    """Write a string that is UTF-8 already."""
    (_write_compact if is_flexible else _write_int16)(out, len(text))
    out.tail += text


def _length_writer(kind: str, *, is_flexible: bool) -> Callable[[Output, int], None]:
    if is_flexible:
        return _write_compact
    return _write_int16 if kind == "string" else _write_int32


def _write_text(field: FieldSchema, *, is_flexible: bool) -> Write:
    write_length = _length_writer("string", is_flexible=is_flexible)
    absent = _absent(field, write_length)

    def write(out: Output, value: str | None) -> None:
        if value is None:
            absent(out)
        else:
            encoded = value.encode()
            write_length(out, len(encoded))
            out.tail += encoded

    return write


def _write_bytes(field: FieldSchema, *, is_flexible: bool) -> Write:
    write_length = _length_writer("bytes", is_flexible=is_flexible)
    absent = _absent(field, write_length)

    def write(out: Output, value: bytes | None) -> None:
        if value is None:
            absent(out)
        else:
            write_length(out, len(value))
            out.tail += value

    return write


def _write_records(field: FieldSchema, *, is_flexible: bool) -> Write:
    write_length = _length_writer("bytes", is_flexible=is_flexible)
    absent = _absent(field, write_length)

    def write(out: Output, value: Sequence[bytes | bytearray | memoryview] | bytes | None) -> None:
        if value is None:
            absent(out)
            return
        buffers = [value] if isinstance(value, _BUFFERS) else value
        size = sum(map(len, buffers))
        write_length(out, size)
        out.add(buffers, size)

    return write


def _absent(field: FieldSchema, write_length: Callable[[Output, int], None]) -> Callable[[Output], None]:
    def write(out: Output) -> None:
        if not field.is_nullable:
            raise TypeError(f"field {field.name} cannot be null")
        write_length(out, -1)

    return write


_SIZED = {"string": _write_text, "bytes": _write_bytes, "records": _write_records}


def _item_writer(field: FieldSchema, *, is_flexible: bool) -> Write:
    if field.struct is not None:
        return struct_writer(field.struct)
    if field.kind == "uuid":
        return _write_uuid
    if field.kind in _FIXED:
        return _FIXED[field.kind]
    return _SIZED[field.kind](field, is_flexible=is_flexible)


def _write_array(field: FieldSchema, write_item: Write, *, is_flexible: bool) -> Write:
    write_length = _length_writer("array", is_flexible=is_flexible)
    absent = _absent(field, write_length)

    def write(out: Output, items: Sequence[Any] | None) -> None:
        if items is None:
            absent(out)
            return
        write_length(out, len(items))
        for item in items:
            write_item(out, item)

    return write


def _write_nullable_struct(write_struct: Write) -> Write:
    def write(out: Output, value: Struct | None) -> None:
        write_int8(out, -1 if value is None else 1)
        if value is not None:
            write_struct(out, value)

    return write


def _field_writer(field: FieldSchema, *, is_flexible: bool) -> Write:
    write = _item_writer(field, is_flexible=is_flexible)
    if field.is_array:
        return _write_array(field, write, is_flexible=is_flexible)
    if field.struct is not None and field.is_nullable:
        return _write_nullable_struct(write)
    return write


def _differs(value: object, default: object) -> bool:
    return bool(value) if default == () else value != default


def _write_tags(
    out: Output, values: dict[str, Any], tagged: Sequence[tuple[int, str, object, Write]]
) -> None:
    present = [each for each in tagged if _differs(values.get(each[1], each[2]), each[2])]
    write_varint(out, len(present))
    for tag, name, _, write_field in present:
        part = Output()
        write_field(part, values[name])
        write_varint(out, tag)
        write_varint(out, len(part))
        for buffer in part.buffers():
            out.tail += buffer


WriteFields = Callable[["Output", dict[str, Any]], None]


def _numbers_writer(fields: Sequence[FieldSchema]) -> WriteFields:
    """Return a writer of consecutive numbers, in one step."""
    pack = struct.Struct(">" + "".join(NUMBER_CODES[field.kind] for field in fields)).pack
    wanted = [(field.name, field.default) for field in fields]

    def write(out: Output, values: dict[str, Any]) -> None:
        get = values.get
        out.tail += pack(*[get(name, default) for name, default in wanted])

    return write


def _one_writer(field: FieldSchema, *, is_flexible: bool) -> WriteFields:
    name, default = field.name, field.default
    write_field = _field_writer(field, is_flexible=is_flexible)
    return lambda out, values: write_field(out, values.get(name, default))


def _steps(schema: StructSchema) -> list[WriteFields]:
    """Return the writers of a struct's untagged fields, in order."""
    steps: list[WriteFields] = []
    for numbers, group in groupby(schema.untagged, key=is_number):
        if numbers:
            steps.append(_numbers_writer(list(group)))
        else:
            steps += [_one_writer(field, is_flexible=schema.is_flexible) for field in group]
    return steps


def struct_writer(schema: StructSchema) -> Write:
    """Return the writer of that struct. It rejects names that no version of the struct has."""
    flexible = schema.is_flexible
    steps = _steps(schema)
    tagged = [
        (field.tag, field.name, field.default, _field_writer(field, is_flexible=flexible))
        for field in schema.tagged
        if field.tag is not None
    ]
    known = schema.all_defaults.keys()
    tagged_names = {field.name for field in schema.tagged}

    def write(out: Output, value: Struct) -> None:
        values = value.__dict__
        if not values.keys() <= known:
            raise TypeError(f"no version of the struct has the fields {sorted(values.keys() - known)}")
        for write_fields in steps:
            write_fields(out, values)
        if not flexible:
            return
        if tagged_names.isdisjoint(values):
            out.tail.append(0)
        else:
            _write_tags(out, values, tagged)

    return write
