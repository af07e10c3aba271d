"""One module builds and parses object names; parsing reverses building."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_store import names
from object_store.names import CompactedName, IngestionName, Layout

uuids = st.uuids()


@given(uuids, uuids)
def test_parse_reverses_ingestion_name(session_id: UUID, file_id: UUID) -> None:
    name = names.ingestion_name(session_id, file_id)
    assert names.parse(name) == IngestionName(session_id=session_id, file_id=file_id)
    assert name.startswith(names.ingestion_prefix(session_id))
    assert names.is_name(name)


@given(uuids, uuids, uuids)
def test_parse_reverses_compacted_name(job_id: UUID, attempt_id: UUID, file_id: UUID) -> None:
    name = names.compacted_name(job_id, attempt_id, file_id)
    assert names.parse(name) == CompactedName(job_id=job_id, attempt_id=attempt_id, file_id=file_id)
    assert name.startswith(names.compacted_prefix(job_id, attempt_id))
    assert names.compacted_prefix(job_id, attempt_id).startswith(names.compacted_prefix(job_id))
    assert names.is_name(name)


@given(uuids, uuids, uuids)
def test_names_without_a_hash_are_still_parsed(owner_id: UUID, attempt_id: UUID, file_id: UUID) -> None:
    """Earlier versions wrote them."""
    ingestion = f"v1/ingest/{owner_id}/{file_id}.seg"
    compacted = f"v1/compact/{owner_id}/{attempt_id}/{file_id}.seg"
    layout = Layout.UNHASHED
    assert names.parse(ingestion) == IngestionName(session_id=owner_id, file_id=file_id, layout=layout)
    assert names.parse(compacted) == CompactedName(
        job_id=owner_id, attempt_id=attempt_id, file_id=file_id, layout=layout
    )
    assert ingestion.startswith(names.ingestion_prefix(owner_id, layout))
    assert compacted.startswith(names.compacted_prefix(owner_id, layout=layout))


def test_names_of_one_hour_begin_with_many_prefixes() -> None:
    """Sessions and jobs are UUIDv7, which begin with the time."""
    owners = [UUID(int=(0x0192_0000_0000 << 80) + number) for number in range(1000)]
    starts = {name[:5] for each in owners for name in (names.ingestion_prefix(each),)}
    assert len(starts) > 200
    assert all(start.startswith(names.HASHED_PREFIX) for start in starts)


FILE = "00000000-0000-7000-8000-0000000000ab"
HASH = names.ingestion_prefix(UUID(FILE))[3:5]


@given(
    st.text()
    | st.from_regex(r"v[12]/([0-9a-f]{2}/)?(ingest|compact)/[0-9a-fA-F-]{30,40}/[0-9a-fA-F-]{30,40}\.seg")
)
def test_a_parsed_name_has_the_original_text(text: str) -> None:
    parsed = names.parse(text)
    assert parsed is None or str(parsed) == text


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        "v1/ingest/",
        f"v1/ingest/{FILE}/{FILE}",
        f"v1/ingest/{FILE}/{FILE}.seg\n",
        f"v1/ingest/{FILE}/{FILE}/{FILE}.seg",
        f"v1/compact/{FILE}/{FILE}.seg",
        f"v2/ingest/{FILE}/{FILE}.seg",
        f"v1/{HASH}/ingest/{FILE}/{FILE}.seg",
        f"v2/{int(HASH, 16) ^ 1:02x}/ingest/{FILE}/{FILE}.seg",
        f"v2/{HASH}/{FILE}/{FILE}.seg",
        f"v3/{HASH}/ingest/{FILE}/{FILE}.seg",
        f"/v1/ingest/{FILE}/{FILE}.seg",
        f"v1/ingest/{FILE}/{FILE.upper()}.seg",
        f"v1/ingest/{FILE}/{FILE.replace('-', '')}.seg",
        f"v1/ingest/{FILE}/{{{FILE}}}.seg",
    ],
)
def test_foreign_names_are_not_parsed(foreign: str) -> None:
    assert names.parse(foreign) is None
