"""One module builds and parses object names; parsing reverses building."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_store import names
from object_store.names import CompactedName, IngestionName

if TYPE_CHECKING:
    from uuid import UUID

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


FILE = "00000000-0000-7000-8000-0000000000ab"


@given(st.text() | st.from_regex(r"v1/(ingest|compact)/[0-9a-fA-F-]{30,40}/[0-9a-fA-F-]{30,40}\.seg"))
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
        f"/v1/ingest/{FILE}/{FILE}.seg",
        f"v1/ingest/{FILE}/{FILE.upper()}.seg",
        f"v1/ingest/{FILE}/{FILE.replace('-', '')}.seg",
        f"v1/ingest/{FILE}/{{{FILE}}}.seg",
    ],
)
def test_foreign_names_are_not_parsed(foreign: str) -> None:
    assert names.parse(foreign) is None
