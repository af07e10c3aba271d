"""Names of files and directories."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_tier.files import file_names
from local_tier.files.file_names import (
    DirectoryState,
    PartitionDirectory,
    parse_partition_directory,
    suffixed_partition_directory,
)

KINDS = [
    file_names.LOG,
    file_names.OFFSET_INDEX,
    file_names.TIME_INDEX,
    file_names.TXN_INDEX,
    file_names.SNAPSHOT,
]

topics = st.text("abcXYZ0189._-", min_size=1, max_size=249)
partitions = st.integers(0, 2**31 - 1)


@given(offset=st.integers(0, 2**63 - 1), kind=st.sampled_from(KINDS))
def test_a_segment_file_name_is_parsed_back(offset: int, kind: str) -> None:
    """Offset and kind are parsed, but only without a suffix."""
    path = file_names.segment_file(Path("orders-0"), offset, kind)
    assert file_names.parse_segment_file(path.name) == (offset, kind)
    assert file_names.parse_segment_file(path.name + file_names.SWAP) is None


def test_segment_file_names_are_kafkas() -> None:
    """Twenty digits, then the kind, then the suffix."""
    path = file_names.segment_file(Path("orders-0"), 147001, file_names.TIME_INDEX, file_names.DELETED)
    assert str(path) == "orders-0/00000000000000147001.timeindex.deleted"


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "1.log", "0000000000000000000x.log", ""])
def test_other_file_names_are_not_segment_files(name: str) -> None:
    """A segment file has exactly 20 digits and a known kind."""
    assert file_names.parse_segment_file(name) is None


def test_a_suffix_is_appended_to_the_file_name() -> None:
    """It replaces no part of the name."""
    path = Path("orders-0/00000000000000000000.log")
    assert file_names.with_suffix(path, file_names.SWAP).name == f"{path.name}{file_names.SWAP}"


@given(topics, partitions)
def test_a_live_partition_directory_is_parsed_back(topic: str, partition: int) -> None:
    directory = PartitionDirectory(topic, partition)

    assert parse_partition_directory(directory.name) == directory


@given(topics, partitions, st.sampled_from(list(DirectoryState)[1:]), st.uuids())
def test_a_suffixed_partition_directory_is_parsed_back(
    topic: str, partition: int, state: DirectoryState, unique: UUID
) -> None:
    directory = suffixed_partition_directory(topic, partition, state, unique)

    assert parse_partition_directory(directory.name) == directory
    assert topic.startswith(directory.topic)
    assert len(directory.name) <= 255 or state is DirectoryState.FUTURE


@given(st.text(max_size=60))
def test_a_name_that_parses_is_built_back_unchanged(text: str) -> None:
    directory = parse_partition_directory(text)

    assert directory is None or directory.name == text


def test_partition_directory_names_are_kafkas() -> None:
    unique = UUID("0123456789abcdef0123456789abcdef")

    assert [
        PartitionDirectory("__strimzi_canary", 0).name,
        suffixed_partition_directory("orders", 2, DirectoryState.DELETE, unique).name,
        suffixed_partition_directory("t" * 249, 7, DirectoryState.STRAY, unique).name,
    ] == [
        "__strimzi_canary-0",
        f"orders-2.{unique.hex}-delete",
        f"{'t' * 214}-7.{unique.hex}-stray",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "orders-",
        "-3",
        "orders-03",
        "orders-3.abc-delete",
        f"orders-3.{'0' * 32}-gone",
        "orders 1-3",
        "leader-epoch-checkpoint",
    ],
)
def test_other_names_are_not_partition_directories(name: str) -> None:
    assert parse_partition_directory(name) is None


def test_a_topic_name_may_look_like_a_suffixed_directory() -> None:
    name = f"orders-3.{'0' * 32}-delete-0"

    assert parse_partition_directory(name) == PartitionDirectory(f"orders-3.{'0' * 32}-delete", 0)
