from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from core.errors import InvalidInputError
from siltstone.kafka_client import text_records
from siltstone.kafka_client.text_records import (
    ENCODINGS,
    OutgoingRecord,
    TextFormat,
    create_json_parser,
    create_text_parser,
    create_text_renderer,
    decode,
    encode,
    read_lines,
    render_json,
)


class _Dribble(io.RawIOBase):
    """Stream that returns data in pieces of given sizes, as a pipe does."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data = data
        self._sizes = sizes

    @override
    def read(self, size: int = -1) -> bytes:
        take = min(size, self._sizes.pop() if self._sizes else size)
        piece, self._data = self._data[:take], self._data[take:]
        return piece


@given(
    lines=st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)),
    sizes=st.lists(st.integers(1, 30)),
    ended=st.booleans(),
)
def test_lines_are_complete_however_the_pipe_splits_them(
    lines: list[bytes], sizes: list[int], ended: bool
) -> None:
    data = b"".join(line + b"\n" for line in lines)
    if not ended and lines and lines[-1]:
        data = data[:-1]
    read = [line for group in read_lines(_Dribble(data, sizes)) for line in group]  # type: ignore[arg-type]  # a stream as far as it is used
    assert read == lines


def test_available_lines_are_returned_without_waiting_for_more() -> None:
    stream = _Dribble(b"a\nb\nc\n", [2, 4])
    groups = read_lines(stream)  # type: ignore[arg-type]  # a stream as far as it is used
    assert next(groups) == [b"a", b"b"]


def test_a_line_that_is_too_long_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_records, "MAX_LINE_BYTES", 10)
    with pytest.raises(InvalidInputError, match="longer than 10 bytes"):
        list(read_lines(io.BytesIO(b"x" * 11)))


def test_a_line_is_split_into_key_and_value_at_the_first_separator() -> None:
    parse = create_text_parser(TextFormat(key_separator="::"))
    assert parse("line 1", b"k::v::w") == OutgoingRecord(b"k", b"v::w")
    with pytest.raises(InvalidInputError, match="line 7 has no '::'"):
        parse("line 7", b"kv")


def test_without_a_separator_a_line_is_a_value_with_the_common_key() -> None:
    assert create_text_parser(TextFormat())("line 1", b"a:b") == OutgoingRecord(None, b"a:b")
    form = TextFormat(key=b"k", headers=(("by", b"me"),))
    assert create_text_parser(form)("line 1", b"v") == OutgoingRecord(b"k", b"v", (("by", b"me"),))


def test_a_chosen_text_stands_for_null() -> None:
    parse = create_text_parser(TextFormat(key_separator=":", null="-"))
    assert parse("line 1", b"-:-") == OutgoingRecord(None, None)
    assert parse("line 1", b":") == OutgoingRecord(b"", b"")


@given(data=st.binary(), encoding=st.sampled_from(ENCODINGS))
def test_every_encoding_is_lossless(data: bytes, encoding: str) -> None:
    assert decode(encode(data, encoding), encoding) == data


@pytest.mark.parametrize("encoding", ["base64", "hex"])
def test_text_in_a_wrong_encoding_is_an_error(encoding: str) -> None:
    with pytest.raises(InvalidInputError, match=f"the value on line 3 is not {encoding}"):
        create_text_parser(TextFormat(value_encoding=encoding))("line 3", b"!")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 3 is not a record in JSON: Invalid JSON"),
        (b"[1]", "line 3 is not a record in JSON: Input should be"),
        (b'{"key": 1}', "line 3 is not a record in JSON: field key"),
        (b'{"kay": "1"}', "field kay"),
        (b'{"key": "!", "key_encoding": "base64"}', "line 3: key is not valid base64"),
        (b'{"timestamp": 0}', "line 3: timestamp 0 cannot be sent"),
    ],
)
def test_a_line_that_is_not_a_json_record_is_an_error(line: bytes, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        create_json_parser(())("line 3", line)


class _Message:
    """Message with the methods that rendering uses."""

    def __init__(self, record: OutgoingRecord, offset: int) -> None:
        self._record = record
        self._offset = offset

    def partition(self) -> int | None:
        return self._record.partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int | None]:
        return 1, self._record.timestamp

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return list(self._record.headers) or None


_BYTES = st.none() | st.binary(max_size=10)
_RECORDS = st.builds(
    OutgoingRecord,
    key=_BYTES,
    value=_BYTES,
    headers=st.lists(st.tuples(st.text(max_size=5), _BYTES), max_size=3).map(tuple),
    timestamp=st.integers(1, 2**63 - 1),
    partition=st.integers(0, 100),
)


@given(record=_RECORDS, offset=st.integers(0, 2**62))
def test_a_record_printed_as_json_can_be_sent_again(record: OutgoingRecord, offset: int) -> None:
    line: Any = render_json(_Message(record, offset))  # type: ignore[arg-type]  # a message as far as it is used
    assert create_json_parser(())("line 1", line) == record


@given(record=_RECORDS)
def test_a_record_printed_as_encoded_text_can_be_sent_again(record: OutgoingRecord) -> None:
    form = TextFormat(key_separator=":", key_encoding="hex", value_encoding="base64", null="null")
    line = create_text_renderer(form)(_Message(record, 0))  # type: ignore[arg-type]  # as above
    assert create_text_parser(form)("line 1", line.removesuffix(b"\n")) == OutgoingRecord(
        record.key, record.value
    )
