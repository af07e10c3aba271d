"""Records as JSON, without an agent: any bytes survive, and any body is parsed or rejected."""

from __future__ import annotations

import contextlib
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.http.errors import InvalidBodyError
from agent.http.records.produce_body import parse_records
from agent.http.records.rendering import RecordsRendering
from agent.http.records.text_or_base64 import get_bytes, put_bytes
from agent.read.fetch_result import FetchResult
from object_format.codecs.codec import Codec
from object_format.record_batch.records import Record, encode_records

_bytes = st.one_of(st.none(), st.binary(max_size=40), st.text(max_size=20).map(str.encode))
_headers = st.lists(st.tuples(st.text(max_size=8), _bytes), max_size=3).map(tuple)
_contents = st.lists(st.tuples(st.integers(0, 2**50), _bytes, _bytes, _headers), min_size=1, max_size=12)


@given(_bytes)
def test_bytes_survive_json(data: bytes | None) -> None:
    body: dict[str, object] = {}
    put_bytes(body, "value", data)
    assert get_bytes(orjson.loads(orjson.dumps(body)), "value") == data


def _fetched(records: list[Record], codec: Codec) -> FetchResult:
    batches = bytearray(encode_records(records, codec=codec))
    end = records[-1].offset + 1
    return FetchResult(
        partition=0,
        batches=[batches],
        size=len(batches),
        next_offset=end,
        log_start_offset=0,
        high_watermark=end,
        last_stable_offset=end,
    )


def _rendered(fetched: FetchResult, *, from_offset: int, max_records: int, max_bytes: int) -> bytes:
    rendering = RecordsRendering(
        "t", fetched, from_offset=from_offset, max_records=max_records, max_bytes=max_bytes
    )
    while rendering.step():
        pass
    return b"".join(rendering.pieces())


@given(_contents, st.sampled_from(Codec), st.integers(0, 1000))
def test_records_can_be_produced_in_the_form_in_which_they_are_read(
    contents: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]],
    codec: Codec,
    base: int,
) -> None:
    records = [Record(base + index, *content) for index, content in enumerate(contents)]
    rendered = _rendered(_fetched(records, codec), from_offset=base, max_records=10**6, max_bytes=10**9)
    page = orjson.loads(rendered)
    again = parse_records(orjson.dumps({"records": page["records"]}))

    assert again.rejections == {}
    assert again.keys == [record.key for record in records]
    assert again.values == [record.value for record in records]
    assert again.timestamps == [record.timestamp for record in records]
    assert (again.headers or [()] * len(records)) == [record.headers for record in records]


@given(_contents, st.integers(0, 12), st.integers(1, 12), st.integers(1, 400))
def test_a_page_is_a_run_of_records_from_the_requested_offset(
    contents: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]],
    skip: int,
    max_records: int,
    max_bytes: int,
) -> None:
    """It has at least one record if there is any. The rest starts at `next_offset`."""
    records = [Record(2 * index, *content) for index, content in enumerate(contents)]  # odd offsets are holes
    fetched = _fetched(records, Codec.NONE)
    wanted = [record.offset for record in records if record.offset >= skip]
    page = orjson.loads(_rendered(fetched, from_offset=skip, max_records=max_records, max_bytes=max_bytes))
    given = [record["offset"] for record in page["records"]]
    assert given == wanted[: len(given)]
    assert bool(given) == bool(wanted)
    assert len(given) <= max_records
    assert not [offset for offset in wanted[len(given) :] if offset < page["next_offset"]]
    assert page["next_offset"] > max(given, default=-1)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["records", "key", "value", "headers", "timestamp", "partition", "key_encoding", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def _dumped(body: object) -> bytes:
    """Return JSON, also with NaN and huge integers, which other parsers reject."""
    return json.dumps(body).encode()


@given(
    st.one_of(
        st.binary(max_size=60), _json.map(_dumped), _json.map(lambda record: _dumped({"records": [record]}))
    )
)
def test_any_body_is_parsed_or_rejected(body: bytes) -> None:
    with contextlib.suppress(InvalidBodyError):
        records = parse_records(body)
        assert len(records.keys) == len(records.values) == len(records.timestamps)


def test_an_error_names_the_paths_of_invalid_fields() -> None:
    with pytest.raises(
        InvalidBodyError, match=r"^records\.1\.timestamp: .* valid integer; records\.1\.kee: "
    ):
        parse_records(b'{"records":[{"key":"a"},{"kee":"b","timestamp":"x"}]}')
