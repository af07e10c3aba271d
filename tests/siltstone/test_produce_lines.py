from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from bedrock.errors import InvalidInputError, RetryableError, SiltstoneError
from siltstone.agent_client import AgentClient, RequestLostError
from siltstone.command import produce

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Dribble(io.RawIOBase):
    """Gives what there is in pieces of chosen sizes, as a pipe does."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data = data
        self._sizes = sizes

    @override
    def read(self, size: int = -1) -> bytes:
        take = min(size, self._sizes.pop() if self._sizes else size)
        piece, self._data = self._data[:take], self._data[take:]
        return piece


def _number(number: int, line: bytes) -> dict[str, Any]:
    return {"number": number, "line": line}


@given(
    lines=st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)),
    sizes=st.lists(st.integers(1, 30)),
    ended=st.booleans(),
)
def test_lines_come_whole_however_the_pipe_cuts_them(
    lines: list[bytes], sizes: list[int], ended: bool
) -> None:
    data = b"".join(line + b"\n" for line in lines)
    if not ended and lines and lines[-1]:
        data = data[:-1]
    read = [line for group in produce.read_lines(_Dribble(data, sizes)) for line in group]  # type: ignore[arg-type]  # a stream as far as it is used
    assert read == lines


def test_lines_that_are_there_are_given_before_more_are_waited_for() -> None:
    stream = _Dribble(b"a\nb\nc\n", [2, 4])
    groups = produce.read_lines(stream)  # type: ignore[arg-type]  # a stream as far as it is used
    assert next(groups) == [b"a", b"b"]


def test_a_line_without_an_end_is_refused_rather_than_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "MAX_LINE_BYTES", 10)
    with pytest.raises(InvalidInputError, match="longer than 10 bytes"):
        list(produce.read_lines(io.BytesIO(b"x" * 11)))


def test_batches_keep_order_and_numbers_within_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "MAX_BATCH_BYTES", 10)
    groups: Iterator[list[bytes]] = iter([[b"aaaa", b"bbbb", b"cccc", b"d", b"e", b"f\r"], [b"g"]])
    made = [
        [(number, record["line"]) for number, record in each] for each in produce.batches(groups, _number, 3)
    ]
    assert made == [
        [(1, b"aaaa"), (2, b"bbbb")],
        [(3, b"cccc"), (4, b"d"), (5, b"e")],
        [(6, b"f")],
        [(7, b"g")],
    ]


def test_a_line_becomes_key_and_value_at_the_first_separator() -> None:
    parse = produce._line_parser("::")
    assert parse(1, b"k::v::w") == {"key": "k", "value": "v::w"}
    with pytest.raises(InvalidInputError, match="line 7 has no '::'"):
        parse(7, b"kv")


def test_bytes_that_are_not_text_travel_as_base64() -> None:
    assert produce._line_parser(None)(1, b"\xff\x00") == {"value": "/wA=", "value_encoding": "base64"}


@pytest.mark.parametrize(("line", "words"), [(b"{", "line 3 is not JSON"), (b"[1]", "not an object")])
def test_a_line_that_is_no_json_record_is_named(line: bytes, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words) as caught:
        produce._json_record(3, line)
    assert "line 1" not in str(caught.value)


def _client_that_raises(failure: SiltstoneError) -> AgentClient:
    client = Mock(spec=AgentClient)
    client.produce.side_effect = failure
    return client


def test_a_record_that_spoils_its_request_is_named_by_its_line() -> None:
    client = _client_that_raises(InvalidInputError("records.1.key: Input should be a valid string"))
    with pytest.raises(InvalidInputError, match=r"line 8, field key: Input should.*nothing of lines 7 to 8"):
        produce._send(client, "t", [(7, {}), (8, {"key": 1})], None)


def test_another_refusal_stays_as_it_is() -> None:
    failure = InvalidInputError("topic t has no partition 9")
    with pytest.raises(InvalidInputError) as caught:
        produce._send(_client_that_raises(failure), "t", [(7, {})], 9)
    assert caught.value is failure


def test_lines_that_were_under_way_when_the_agent_died_are_named() -> None:
    client = _client_that_raises(RequestLostError("agent at x does not answer"))
    with pytest.raises(RetryableError, match="line 7 of the input may have been appended"):
        produce._send(client, "t", [(7, {})], None)
