"""Conversion between records and lines of text or JSON.

The JSON of a record is that of the HTTP API, so that each reads what the other writes.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import click
import orjson
from pydantic import TypeAdapter, ValidationError

from agent.http.models import RecordBody
from agent.http.records.text_or_base64 import get_bytes, put_bytes
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

    from confluent_kafka import Message

    Headers = Sequence[tuple[str, bytes | None]]
    Parse = Callable[[str, bytes], "OutgoingRecord"]
    Render = Callable[[Message], bytes]

READ_BYTES = 1024 * 1024
MAX_LINE_BYTES = 8 * 1024 * 1024
ENCODINGS = ("text", "base64", "hex")
_RECORD = TypeAdapter(RecordBody)


class OutgoingRecord(NamedTuple):
    """Record to send; the client chooses a timestamp or partition that is None."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat:
    """Format of a record as a line: its parts, their encodings, and the text that stands for null."""

    key_separator: str | None = None
    key_encoding: str = "text"
    value_encoding: str = "text"
    null: str | None = None
    key: bytes | None = None
    headers: Headers = field(default=())


def read_lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Yield lists of complete lines, each as soon as it can be read, without waiting for more input."""
    read = getattr(stream, "read1", stream.read)
    rest = b""
    while chunk := read(READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise InvalidInputError(f"a line is longer than {MAX_LINE_BYTES:,} bytes")
        if lines:
            yield lines
    if rest:
        yield [rest]


def create_text_parser(form: TextFormat) -> Parse:
    """Return a parser of lines that are values, or keys and values with a separator between them."""
    separator = None if form.key_separator is None else form.key_separator.encode()
    null = None if form.null is None else form.null.encode()
    if separator == b"":
        raise click.UsageError("--key-separator is empty")

    def parse(where: str, line: bytes) -> OutgoingRecord:
        key, value = form.key, line
        if separator is not None:
            text, found, value = line.partition(separator)
            if not found:
                raise InvalidInputError(
                    f"{where} has no {form.key_separator!r} between key and value",
                    remedy="correct the line, or --key-separator",
                )
            key = _part(where, "key", text, form.key_encoding, null)
        return OutgoingRecord(key, _part(where, "value", value, form.value_encoding, null), form.headers)

    return parse


def _part(where: str, name: str, text: bytes, encoding: str, null: bytes | None) -> bytes | None:
    if text == null:
        return None
    try:
        return decode(text, encoding)
    except ValueError as failure:
        raise InvalidInputError(
            f"the {name} on {where} is not {encoding}: {failure}", remedy=f"correct it, or --{name}-encoding"
        ) from None


def decode(text: bytes, encoding: str) -> bytes:
    """Return the bytes that a text in one of `ENCODINGS` stands for; raises ValueError."""
    match encoding:
        case "base64":
            return base64.b64decode(text, validate=True)
        case "hex":
            return binascii.unhexlify(text)
        case _:
            return text


def encode(data: bytes | None, encoding: str, null: bytes = b"") -> bytes:
    """Return the text of bytes in one of `ENCODINGS`; `null` stands for None."""
    if data is None:
        return null
    match encoding:
        case "base64":
            return base64.b64encode(data)
        case "hex":
            return binascii.hexlify(data)
        case _:
            return data


def create_json_parser(headers: Headers) -> Parse:
    """Return a parser of lines that are JSON objects; `headers` are added to those of each record."""

    def parse(where: str, line: bytes) -> OutgoingRecord:
        try:
            body = _RECORD.validate_json(line)
            own = tuple((header["key"], get_bytes(header, "value")) for header in body.get("headers", ()))
            return OutgoingRecord(
                get_bytes(body, "key"),
                get_bytes(body, "value"),
                (*own, *headers),
                _timestamp(body.get("timestamp")),
                body.get("partition"),
            )
        except ValidationError as failure:
            raise InvalidInputError(
                f"{where} is not a record in JSON: {_describe(failure)}",
                remedy='write records such as {"key": "k", "value": "v"}',
            ) from None
        except ValueError as failure:
            raise InvalidInputError(f"{where}: {failure}") from None

    return parse


def _timestamp(given: int | None) -> int | None:
    if given == 0:
        raise ValueError("timestamp 0 cannot be sent by librdkafka, which replaces it; use the HTTP API")
    return None if given == -1 else given


def _describe(failure: ValidationError) -> str:
    detail = failure.errors(include_url=False, include_input=False)[0]
    field_path = ".".join(map(str, detail["loc"]))
    return f"field {field_path}: {detail['msg']}" if field_path else detail["msg"]


def create_text_renderer(form: TextFormat) -> Render:
    """Return a renderer of key, separator and value, or of the value alone without a separator."""
    separator = None if form.key_separator is None else form.key_separator.encode()
    null = (form.null or "").encode()

    def render(message: Message) -> bytes:
        value = encode(message.value(), form.value_encoding, null)
        if separator is None:
            return value + b"\n"
        return encode(message.key(), form.key_encoding, null) + separator + value + b"\n"

    return render


def render_json(message: Message) -> bytes:
    """Render all fields of a record without loss, as `create_json_parser` reads them."""
    body: dict[str, object] = {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
    }
    put_bytes(body, "key", message.key())
    put_bytes(body, "value", message.value())
    headers = []
    for pair in message.headers() or ():
        header: dict[str, object] = {"key": pair[0]}
        put_bytes(header, "value", pair[1].encode() if isinstance(pair[1], str) else pair[1])
        headers.append(header)
    body["headers"] = headers
    return orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE)
