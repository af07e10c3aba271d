"""The bytes of a producer snapshot: `<offset>.snapshot`, what a log knows of its producers below that offset.

::

    version        int16   1
    checksum       uint32  CRC-32C of all that follows
    entry count    int32
    entries, 46 bytes each:
      producer id               int64
      producer epoch            int16
      last sequence             int32
      last offset               int64   of its last data batch, -1 when it has none
      offset delta              int32   of that batch
      timestamp                 int64
      coordinator epoch         int32
      transaction first offset  int64   -1 when none is open

Source: ProducerSnapshot.json and ProducerStateManager of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import crc32c

from local_tier.errors import CorruptSnapshotError
from local_tier.producers.producer_state import KnownBatch, ProducerState

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

VERSION: Final = 1
_FRONT: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")


def encode_snapshot(producers: Iterable[ProducerState]) -> bytes:
    """The file's bytes."""
    entries = [
        _ENTRY.pack(
            state.producer_id,
            state.producer_epoch,
            state.last_sequence,
            state.last_offset,
            state.last_offset_delta,
            state.last_timestamp,
            state.coordinator_epoch,
            -1 if state.transaction_start is None else state.transaction_start,
        )
        for state in producers
    ]
    body = b"".join((_COUNT.pack(len(entries)), *entries))
    return _FRONT.pack(VERSION, crc32c.crc32c(body)) + body


def decode_snapshot(data: bytes, path: Path) -> list[ProducerState]:
    """The producers of a snapshot; CorruptSnapshotError, which names `path`, when it is not sound."""
    if len(data) < _FRONT.size + _COUNT.size:
        raise CorruptSnapshotError(f"{path} has {len(data)} bytes, too few for a producer snapshot")
    version, checksum = _FRONT.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshotError(f"{path} has version {version}, and {VERSION} is known")
    body = memoryview(data)[_FRONT.size :]
    if crc32c.crc32c(body) != checksum:
        raise CorruptSnapshotError(f"the CRC-32C of {path} does not match its bytes")
    (count,) = _COUNT.unpack_from(body)
    if len(body) != _COUNT.size + count * _ENTRY.size:
        raise CorruptSnapshotError(f"{path} has not the size of {count} producers")
    return [_state(*fields) for fields in _ENTRY.iter_unpack(body[_COUNT.size :])]


def _state(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    transaction_start: int,
) -> ProducerState:
    state = ProducerState(
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        last_timestamp=timestamp,
        transaction_start=None if transaction_start < 0 else transaction_start,
    )
    if last_offset >= 0:
        state.batches.append(KnownBatch(last_sequence, last_offset, offset_delta, timestamp))
    return state
