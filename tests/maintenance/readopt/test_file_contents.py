"""Commits rebuilt from objects equal those of the agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from core.clock import ManualClock
from core.errors import CorruptDataError
from core.ids import SeededIds
from maintenance.readopt import read_file_commit
from maintenance.readopt.file_contents import read_contents
from object_format.segment_file import UnsupportedFormatError
from object_store.accounting import Purpose
from object_store.errors import ObjectNotFoundError
from object_store.local.store import LocalStore
from tests.agent.write.test_ingestion_file import APPENDS, sealed_file
from tests.object_format.segment_file.forging import SECTION_FOOTER, complete, split

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    """Return a store for all examples."""
    return LocalStore(tmp_path_factory.mktemp("objects"), SeededIds(1, ManualClock()))


@given(APPENDS)
def test_the_commit_follows_from_the_object(
    store: LocalStore, appends: list[tuple[int, int, int, list[tuple[int, int]]]]
) -> None:
    """Sections, positions, runs, producers, counts and timestamps are those that the agent sent."""
    sealed, _ = sealed_file(appends)
    store.put(sealed.object_name, sealed.body, purpose=Purpose.INGEST)
    assert read_file_commit(store, sealed.object_name) == sealed.commit


def test_a_damaged_or_missing_object_is_an_error(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, SeededIds(1, ManualClock()))
    sealed, _ = sealed_file([(1, 0, 5, [(3, 20)])])
    with pytest.raises(ObjectNotFoundError):
        read_file_commit(store, sealed.object_name)
    data = bytearray(b"".join(sealed.body))
    data[len(data) // 2] ^= 1
    store.put(sealed.object_name, [data], purpose=Purpose.INGEST)
    with pytest.raises(CorruptDataError):
        read_file_commit(store, sealed.object_name)


def test_a_file_of_a_newer_format_is_not_damaged(tmp_path: Path) -> None:
    """Nothing is interpreted before the header: flags of sections may be unknown, and the rest unreadable."""
    store = LocalStore(tmp_path, SeededIds(1, ManualClock()))
    sealed, _ = sealed_file([(1, 0, 5, [(3, 20)])])
    whole = b"".join(sealed.body)
    header, *rest = split(whole)
    featured = header._replace(payload=header.payload[:7] + b"\x08" + header.payload[8:])
    flagged = [
        block._replace(payload=block.payload[:58] + b"\x01" + block.payload[59:])
        if block.kind == SECTION_FOOTER
        else block
        for block in rest[:-2]
    ]
    later_version = whole[:20] + b"\x00\x02" + bytes(100)
    for data, reason in (
        (complete([featured, *flagged]), "unknown features of bits 3"),
        (later_version, "has format version 2"),
    ):
        store.put(sealed.object_name, [data], purpose=Purpose.INGEST)
        for read in (read_contents, read_file_commit):
            with pytest.raises(UnsupportedFormatError, match=reason):
                read(store, sealed.object_name)
        store.delete([sealed.object_name], purpose=Purpose.FSCK)


@pytest.mark.parametrize("length", [0, 7, 67, 100])
def test_a_file_that_was_cut_off_is_damaged(tmp_path: Path, length: int) -> None:
    store = LocalStore(tmp_path, SeededIds(1, ManualClock()))
    sealed, _ = sealed_file([(1, 0, 5, [(3, 20)])])
    store.put(sealed.object_name, [b"".join(sealed.body)[:length]], purpose=Purpose.INGEST)
    with pytest.raises(CorruptDataError):
        read_contents(store, sealed.object_name)
