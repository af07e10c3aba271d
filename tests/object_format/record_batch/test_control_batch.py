"""Control batches: what is written can be read, and what a cleaning or another type left is no marker."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_format.record_batch.control_batch import (
    ABORT,
    COMMIT,
    UNKNOWN_TYPE,
    control_type,
    decode_end_marker,
    encode_end_marker,
)
from object_format.record_batch.headers import read_header
from object_format.record_batch.records import encode_batch

_KEY = struct.pack(">hh", 0, 1)
_VALUE = struct.pack(">hi", 0, 5)


@given(
    st.booleans(),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**40),
    st.integers(0, 2**15 - 1),
    st.sampled_from([{}, {"base_offset": 9}, {"base_offset": 9, "leader_epoch": 4}]),
)
def test_a_marker_can_be_read(
    commits: bool, coordinator_epoch: int, timestamp: int, epoch: int, offsets: dict[str, int]
) -> None:
    """Its base offset and leader epoch are 0 by default."""
    batch = encode_end_marker(
        commits=commits,
        producer_id=7,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=timestamp,
        **offsets,
    )
    header = read_header(batch)
    assert (header.base_offset, header.partition_leader_epoch) == (
        offsets.get("base_offset", 0),
        offsets.get("leader_epoch", 0),
    )
    assert decode_end_marker(bytes(3) + batch, 3) == (not commits, coordinator_epoch, timestamp)
    assert control_type(batch) == (COMMIT if commits else ABORT)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, epoch, -1)
    assert (header.is_control, header.is_transactional) == (True, True)


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        (None, _VALUE, UNKNOWN_TYPE),
        (_KEY[:3], _VALUE, UNKNOWN_TYPE),
        (struct.pack(">hh", 0, 3), _VALUE, 3),
        (_KEY, None, COMMIT),
        (_KEY, _VALUE[:5], COMMIT),
    ],
)
def test_other_control_batches_end_no_transaction(key: bytes | None, value: bytes | None, kind: int) -> None:
    batch = encode_batch([0], [key], [value], is_control=True)
    assert decode_end_marker(batch) is None
    assert control_type(batch) == kind


def test_a_batch_without_records_is_no_marker() -> None:
    assert decode_end_marker(encode_batch([], [], [], last_offset_delta=0, is_control=True)) is None


def test_checksums_of_markers_are_not_verified_again() -> None:
    batch = bytearray(encode_batch([1], [_KEY], [_VALUE], is_control=True))
    batch[18] ^= 1

    assert decode_end_marker(batch) == (False, 5, 1)
    assert control_type(batch) == COMMIT
