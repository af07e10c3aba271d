from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_tier.files.directory_names import (
    DirectoryState,
    LogDirectory,
    log_directory,
    parse_directory_name,
    passing_directory,
)

topics = st.text("abcXYZ0189._-", min_size=1, max_size=249)
partitions = st.integers(0, 2**31 - 1)


@given(topics, partitions)
def test_a_directory_in_use_is_parsed_back(topic: str, partition: int) -> None:
    directory = log_directory(topic, partition)

    assert parse_directory_name(directory.name) == directory


@given(topics, partitions, st.sampled_from(list(DirectoryState)[1:]), st.uuids())
def test_a_directory_with_a_tail_is_parsed_back(
    topic: str, partition: int, state: DirectoryState, unique: UUID
) -> None:
    directory = passing_directory(topic, partition, state, unique)

    assert parse_directory_name(directory.name) == directory
    assert topic.startswith(directory.topic)
    assert len(directory.name) <= 255 or state is DirectoryState.FUTURE


@given(st.text(max_size=60))
def test_what_is_no_name_is_refused_quietly(text: str) -> None:
    directory = parse_directory_name(text)

    assert directory is None or directory.name == text


def test_names_are_those_of_kafka() -> None:
    unique = UUID("0123456789abcdef0123456789abcdef")

    assert [
        log_directory("__strimzi_canary", 0).name,
        passing_directory("orders", 2, DirectoryState.DELETE, unique).name,
        passing_directory("t" * 249, 7, DirectoryState.STRAY, unique).name,
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
def test_other_directories_hold_no_log(name: str) -> None:
    assert parse_directory_name(name) is None


def test_a_topic_may_look_like_a_directory_with_a_tail() -> None:
    name = f"orders-3.{'0' * 32}-delete-0"

    assert parse_directory_name(name) == LogDirectory(f"orders-3.{'0' * 32}-delete", 0)
