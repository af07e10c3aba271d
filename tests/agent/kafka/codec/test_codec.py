"""The codec compared with kio's, for every supported version of every API."""

from __future__ import annotations

import io
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from agent.kafka.api_registry import APIS
from agent.kafka.codec import Cursor, MalformedMessageError, Message, Output, Struct
from agent.kafka.codec.reading import read_varint
from agent.kafka.codec.schema import StructSchema, schema_of
from agent.kafka.codec.writing import write_varint

if TYPE_CHECKING:
    from agent.kafka.codec.schema import FieldSchema

_MESSAGES = [(api.name, version) for api in APIS for version in range(api.min_version, api.max_version + 1)]
_TEXT = st.text(max_size=5)
_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": _TEXT,
    "bytes": st.binary(max_size=5),
    "records": st.binary(max_size=5),
    "uuid": st.uuids(),
    "error_code": st.integers(-1, 40),
    "timedelta_i32": st.integers(-(2**31), 2**31 - 1),
    "timedelta_i64": st.integers(-(2**40), 2**40),
    "datetime_i64": st.integers(0, 2**40),
}


def structs(schema: StructSchema) -> st.SearchStrategy[Struct]:
    """Return a strategy for structs with the fields of one version."""
    return st.fixed_dictionaries({field.name: _values(field) for field in schema.fields}).map(
        lambda values: Struct(**values)
    )


def _values(field: FieldSchema) -> st.SearchStrategy[Any]:
    inner = structs(field.struct) if field.struct is not None else _KINDS[field.kind]
    if field.kind == "datetime_i64":
        return inner  # -1 here is None in kio
    if field.is_array:
        inner = st.lists(inner, max_size=3)
    return st.none() | inner if field.is_nullable else inner


def encoded(name: str, version: int, direction: str, value: Struct) -> bytes:
    out = Output()
    message = Message.of(name, version)
    (message.write_request if direction == "request" else message.write_response)(out, value)
    return b"".join(out.buffers())


def kio_entity(name: str, version: int, direction: str) -> Any:  # noqa: ANN401  # generated, one class for each
    module = import_module(f"kio.schema.{name}.v{version}.{direction}")
    wanted = name.replace("_", "") + direction
    return next(value for key, value in vars(module).items() if key.lower() == wanted)


@pytest.mark.parametrize("direction", ["request", "response"])
@given(data=st.data())
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_kio_reads_what_we_write_and_writes_what_we_read(direction: str, data: st.DataObject) -> None:
    name, version = data.draw(st.sampled_from(_MESSAGES))
    value = data.draw(structs(schema_of(name, version, direction)))
    ours = encoded(name, version, direction, value)
    entity = kio_entity(name, version, direction)
    theirs, size = entity_reader(entity)(ours, 0)
    assert size == len(ours)
    with io.BytesIO() as buffer:
        entity_writer(entity)(buffer, theirs)
        again = buffer.getvalue()
    message = Message.of(name, version)
    read = message.read_request if direction == "request" else message.read_response
    assert encoded(name, version, direction, read(Cursor(memoryview(again)))) == ours
    assert read(Cursor(memoryview(ours))) == read(Cursor(memoryview(again)))


@pytest.mark.parametrize(("name", "version"), _MESSAGES)
def test_every_version_can_be_written_with_defaults_alone(name: str, version: int) -> None:
    for direction in ("request", "response"):
        message = Message.of(name, version)
        read = message.read_request if direction == "request" else message.read_response
        data = encoded(name, version, direction, Struct())
        assert set(read(Cursor(memoryview(data))).__dict__) == set(
            schema_of(name, version, direction).all_defaults
        )


def test_unknown_tagged_fields_are_ignored() -> None:
    request = encoded("metadata", 12, "request", Struct(topics=[]))
    assert request.endswith(b"\0")
    with_unknown_tag = request[:-1] + b"\x01\x63\x03abc"
    assert Message.of("metadata", 12).read_request(Cursor(memoryview(with_unknown_tag))).topics == []


def test_an_array_longer_than_its_message_is_rejected_before_allocation() -> None:
    with pytest.raises(MalformedMessageError, match="too many"):
        Message.of("metadata", 1).read_request(Cursor(memoryview(b"\x7f\xff\xff\xff")))


def test_a_string_has_at_most_32767_bytes() -> None:
    """As in Kafka's generated code, although the length of a compact string could be larger."""
    message = Message.of("produce", 9)
    longest = Struct(transactional_id="x" * 32_767, acks=1, timeout=1, topic_data=[])
    frame = encoded("produce", 9, "request", longest)
    assert message.read_request(Cursor(memoryview(frame))).transactional_id == "x" * 32_767
    too_long = b"\x81\x80\x02" + b"x" * 32_768 + frame[3 + 32_767 :]
    with pytest.raises(MalformedMessageError, match="longer than 32767"):
        message.read_request(Cursor(memoryview(too_long)))


def test_a_field_of_no_version_is_rejected() -> None:
    with pytest.raises(TypeError, match="no version"):
        encoded("metadata", 12, "response", Struct(topic=[]))


def test_record_bytes_are_not_copied() -> None:
    records = [bytearray(b"one"), bytearray(b"two")]
    out = Output()
    partition = Struct(partition_index=0, records=records)
    Message.of("fetch", 12).write_response(out, Struct(responses=[Struct(topic="t", partitions=[partition])]))
    assert [buffer for buffer in out.buffers() if any(buffer is each for each in records)] == records
    frame = bytearray(
        encoded(
            "produce",
            9,
            "request",
            Struct(topic_data=[Struct(name="t", partition_data=[Struct(index=0, records=b"batch")])]),
        )
    )
    read = Message.of("produce", 9).read_request(Cursor(memoryview(frame)))
    view = read.topic_data[0].partition_data[0].records
    assert view.obj is frame
    assert not view.readonly


def test_unsigned_varints_have_their_minimal_length() -> None:
    """For the smallest and the largest value of each length. They are read back, too."""
    for length in range(1, 6):
        for value in (1 << 7 * (length - 1), (1 << 7 * length) - 1 & 0xFFFF_FFFF):
            out = Output()
            write_varint(out, value)
            assert len(out.tail) == length
            assert sum((byte & 0x7F) << 7 * index for index, byte in enumerate(out.tail)) == value
            assert [byte >> 7 for byte in out.tail] == [1] * (length - 1) + [0]
            assert read_varint(Cursor(memoryview(out.tail))) == value
