"""Names of files in a log's directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_tier.files import file_names

KINDS = [
    file_names.LOG,
    file_names.OFFSET_INDEX,
    file_names.TIME_INDEX,
    file_names.TXN_INDEX,
    file_names.SNAPSHOT,
]


@given(offset=st.integers(0, 2**63 - 1), kind=st.sampled_from(KINDS))
def test_a_name_parses_to_what_it_was_built_from(offset: int, kind: str) -> None:
    """Offset and kind come back, and only without a further suffix."""
    path = file_names.segment_file(Path("orders-0"), offset, kind)
    assert file_names.parse_segment_file(path.name) == (offset, kind)
    assert file_names.parse_segment_file(path.name + file_names.SWAP) is None


def test_names_are_kafkas() -> None:
    """Twenty digits, then the kind, then the suffix."""
    path = file_names.segment_file(Path("orders-0"), 147001, file_names.TIME_INDEX, file_names.DELETED)
    assert str(path) == "orders-0/00000000000000147001.timeindex.deleted"


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "1.log", "0000000000000000000x.log", ""])
def test_other_files_are_not_segments(name: str) -> None:
    """What has not exactly 20 digits and a known kind is no segment file."""
    assert file_names.parse_segment_file(name) is None


def test_a_suffix_goes_behind_the_kind() -> None:
    """It replaces nothing of a name."""
    path = Path("orders-0/00000000000000000000.log")
    assert file_names.with_suffix(path, file_names.SWAP).name == f"{path.name}{file_names.SWAP}"
