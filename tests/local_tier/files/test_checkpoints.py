from __future__ import annotations

import errno
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.clock import ManualClock
from local_tier.errors import CorruptCheckpointError
from local_tier.files.checkpoint_files import OffsetCheckpointFile, read_checkpoint, write_checkpoint
from local_tier.files.file_system import RealFileSystem
from local_tier.files.metadata_files import (
    MetaProperties,
    parse_uuid,
    read_meta_properties,
    read_topic_id,
    uuid_text,
    write_meta_properties,
    write_topic_id,
)
from local_tier.manager.log_directories import take_clean_shutdown_marker, write_clean_shutdown_marker
from local_tier.topic_partition import TopicPartition
from tests.local_tier.crash.power_loss import PowerLossFileSystem
from tests.local_tier.steps import DiskError, NoFaults, SteppedFileSystem

if TYPE_CHECKING:
    from pathlib import Path

FILES = RealFileSystem()
ORDERS = UUID("1bdc7a26-6b1f-4ad1-9d69-0123456789ab")


def test_offset_checkpoints_have_kafkas_format(tmp_path: Path) -> None:
    checkpoint = OffsetCheckpointFile(FILES, tmp_path / "recovery-point-offset-checkpoint")
    offsets = {TopicPartition("orders", 1): 105_640, TopicPartition("orders", 0): 105_823}

    checkpoint.write(offsets)

    assert checkpoint.path.read_bytes() == b"0\n2\norders 0 105823\norders 1 105640\n"
    assert checkpoint.read() == offsets


@given(
    st.dictionaries(
        st.tuples(st.text("abz09._-", min_size=1, max_size=20), st.integers(0, 2**31 - 1)),
        st.integers(-1, 2**63 - 1),
        max_size=20,
    )
)
def test_written_offsets_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, offsets: dict[tuple[str, int], int]
) -> None:
    checkpoint = OffsetCheckpointFile(FILES, tmp_path_factory.getbasetemp() / "offsets")
    named = {TopicPartition(*key): offset for key, offset in offsets.items()}

    checkpoint.write(named)

    assert checkpoint.read() == named


@pytest.mark.parametrize("content", [b"", b"0\n", b"0\n0\n"])
def test_a_checkpoint_that_kafka_has_just_created_is_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)

    assert OffsetCheckpointFile(FILES, path).read() == {}


def test_a_missing_checkpoint_differs_from_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    missing = read_checkpoint(FILES, path, 0)
    write_checkpoint(FILES, path, 0, [])

    assert (missing, read_checkpoint(FILES, path, 0)) == (None, [])
    assert OffsetCheckpointFile(FILES, tmp_path / "other").read() == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1\n0\n", "its version is 1, not 0"),
        (b"x\n0\n", "'x' is not a number"),
        (b"0\n2\norders 0 1\n", "should have 2 entries but has 1"),
        (b"0\n1\norders 0 1\norders 1 1\n", "should have 1 entries but has 2"),
        (b"0\n1\norders 0\n", "malformed line: 'orders 0'"),
        (b"0\n1\norders 0 one\n", "'one' is not a number"),
        (b"0\n1\norders 0 123456789012345678901\n", "is not a number"),
        (b"\xff\xfe\n0\n", "it is not text"),
        (bytes(20), "is not a number"),
    ],
)
def test_a_corrupt_checkpoint_is_rejected(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)

    with pytest.raises(CorruptCheckpointError, match=message):
        OffsetCheckpointFile(FILES, path).read()


def test_a_failed_checkpoint_write_keeps_the_old_offsets(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    orders = TopicPartition("orders", 0)
    OffsetCheckpointFile(FILES, path).write({orders: 1})
    full = SteppedFileSystem(FILES, DiskError("write", code=errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        OffsetCheckpointFile(full, path).write({orders: 2})

    assert OffsetCheckpointFile(FILES, path).read() == {orders: 1}


@given(st.uuids())
def test_a_uuid_is_read_back(value: UUID) -> None:
    assert parse_uuid(uuid_text(value)) == value


@pytest.mark.parametrize("text", ["", "AA", "!" * 22, "A" * 23, "A" * 21 + "B", "ä" * 22])
def test_an_invalid_uuid_is_parsed_as_none(text: str) -> None:
    assert parse_uuid(text) is None


def test_partition_metadata_has_kafkas_format(tmp_path: Path) -> None:
    before = read_topic_id(FILES, tmp_path)
    write_topic_id(FILES, tmp_path, ORDERS)

    assert before is None
    assert (tmp_path / "partition.metadata").read_bytes() == b"version: 0\ntopic_id: G9x6JmsfStGdaQEjRWeJqw"
    assert read_topic_id(FILES, tmp_path) == ORDERS


@pytest.mark.parametrize(
    "content", [b"", b"version: 1\ntopic_id: G9x6JmsfStGdaQEjRWeJqw", b"version: 0\ntopic_id: x", b"\xff"]
)
def test_unreadable_partition_metadata_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "partition.metadata").write_bytes(content)

    with pytest.raises(CorruptCheckpointError, match="does not name a topic"):
        read_topic_id(FILES, tmp_path)


def test_meta_properties_have_kafkas_format(tmp_path: Path) -> None:
    mine = MetaProperties(cluster_id="a=b:c\\d", node_id=3, directory_id=ORDERS)
    before = read_meta_properties(FILES, tmp_path)
    write_meta_properties(FILES, tmp_path, mine, ManualClock(0))

    assert before is None
    assert (tmp_path / "meta.properties").read_text() == (
        "#\n#Thu Jan 01 00:00:00 UTC 1970\ncluster.id=a\\=b\\:c\\\\d\n"
        "directory.id=G9x6JmsfStGdaQEjRWeJqw\nnode.id=3\nversion=1\n"
    )
    assert read_meta_properties(FILES, tmp_path) == mine


@pytest.mark.parametrize(
    "content",
    [
        "",
        "version=0\nnode.id=1\ndirectory.id=G9x6JmsfStGdaQEjRWeJqw\n",
        "version=1\nnode.id=one\ndirectory.id=G9x6JmsfStGdaQEjRWeJqw\n",
        "version=1\nnode.id=1\ndirectory.id=no id\n",
        "version=1\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n",
    ],
)
def test_meta_properties_without_owner_are_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "meta.properties").write_text(content)

    with pytest.raises(CorruptCheckpointError, match="does not name the owner"):
        read_meta_properties(FILES, tmp_path)


def test_a_clean_shutdown_marker_counts_once(tmp_path: Path) -> None:
    write_clean_shutdown_marker(FILES, tmp_path, epoch=7)
    content = (tmp_path / ".kafka_cleanshutdown").read_text()

    assert content == '{"version":0,"brokerEpoch":7}'
    assert [take_clean_shutdown_marker(FILES, tmp_path) for _ in range(2)] == [True, False]


def test_a_removed_clean_shutdown_marker_does_not_return_after_a_power_loss(tmp_path: Path) -> None:
    root = tmp_path / "logs"
    root.mkdir()
    files = PowerLossFileSystem(root)
    write_clean_shutdown_marker(files, root)
    files.lose_power(tmp_path / "before")
    take_clean_shutdown_marker(files, root)
    files.lose_power(tmp_path / "after")

    assert take_clean_shutdown_marker(FILES, tmp_path / "before")
    assert not take_clean_shutdown_marker(FILES, tmp_path / "after")


def test_checking_for_a_missing_marker_writes_nothing(tmp_path: Path) -> None:
    faults = NoFaults()

    take_clean_shutdown_marker(SteppedFileSystem(FILES, faults), tmp_path)

    assert not faults.steps
