"""Names that say which shards have a part of a file."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInputError
from object_store import names
from prototypes.sharded_catalog import ShardedName, parse, sharded_name

_SESSION, _FILE = UUID(int=1), UUID(int=2)


@given(st.uuids(), st.uuids(), st.sets(st.integers(0, 63), min_size=1))
def test_parse_is_the_inverse_of_the_name(session_id: UUID, file_id: UUID, shards: set[int]) -> None:
    name = sharded_name(session_id, file_id, shards)
    assert parse(name) == ShardedName(session_id, file_id, frozenset(shards))
    assert names.is_name(name)


def test_a_file_of_the_home_shard_has_the_name_of_today() -> None:
    plain = names.ingestion_name(_SESSION, _FILE)
    assert sharded_name(_SESSION, _FILE, [0]) == plain
    assert parse(plain) == ShardedName(_SESSION, _FILE, frozenset({0}))


@pytest.mark.parametrize("shards", [[], [-1], [64]])
def test_impossible_shards_are_rejected(shards: list[int]) -> None:
    with pytest.raises(InvalidInputError):
        sharded_name(_SESSION, _FILE, shards)


@pytest.mark.parametrize(
    "suffix", [".0.seg", ".1.seg", ".03.seg", ".g.seg", f".{1 << 64:x}.seg", ".3.seg.seg"]
)
def test_no_two_names_mean_the_same(suffix: str) -> None:
    assert parse(names.ingestion_name(_SESSION, _FILE).removesuffix(".seg") + suffix) is None


def test_a_compacted_file_is_no_ingestion_file() -> None:
    assert parse(names.compacted_name(_SESSION, _SESSION, _FILE)) is None
