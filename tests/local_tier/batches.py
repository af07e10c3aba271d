"""Record batches for tests of the local tier."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from object_format.buffers import readable
from object_format.record_batch.headers import scan_batches
from object_format.record_batch.records import decode_batches, encode_batch

if TYPE_CHECKING:
    from object_format.record_batch.headers import BatchRows

NO_PRODUCER = (-1, -1, -1)


def batch(
    base_offset: int,
    count: int = 1,
    *,
    timestamp: int = 1_000,
    size: int = 10,
    epoch: int = 0,
    producer: tuple[int, int, int] = NO_PRODUCER,
    transactional: bool = False,
    keys: bool = True,
) -> bytes:
    """Return a batch of `count` records from `base_offset` on.

    The key of a record is its offset. Its value has `size` bytes.
    """
    return encode_batch(
        [timestamp + i for i in range(count)],
        [str(base_offset + i).encode() if keys else None for i in range(count)],
        [bytes(size)] * count,
        base_offset=base_offset,
        leader_epoch=epoch,
        producer=producer,
        is_transactional=transactional,
    )


def marker(
    base_offset: int,
    *,
    producer: tuple[int, int],
    abort: bool,
    timestamp: int = 1_000,
    coordinator_epoch: int = 0,
    epoch: int = 0,
) -> bytes:
    """Return the control batch that ends a producer's transaction."""
    return encode_batch(
        [timestamp],
        [struct.pack(">hh", 0, 0 if abort else 1)],
        [struct.pack(">hi", 0, coordinator_epoch)],
        base_offset=base_offset,
        leader_epoch=epoch,
        producer=(*producer, -1),
        is_transactional=True,
        is_control=True,
    )


def rows_of(data: bytes) -> BatchRows:
    """Return the headers of whole batches."""
    return scan_batches(readable(data))


def offsets_of(data: memoryview | bytes) -> list[int]:
    """Return the offsets of all records, including control records."""
    return [offset for columns in decode_batches(data, control=True) for offset in columns.offsets.tolist()]
