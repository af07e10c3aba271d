"""Control batches that end transactions, as Kafka's coordinator writes them (KIP-98).

A control batch has one record. Its key has a version and a type, and its value a version and the epoch of the
coordinator. Object topics and local topics show the same bytes to their readers.

Source: ControlRecordType and EndTransactionMarker of org.apache.kafka.common.record.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from object_format.kernels.batches.layout import NO_SEQUENCE
from object_format.record_batch.records import decode_batch, encode_batch

if TYPE_CHECKING:
    from typing_extensions import Buffer

ABORT: Final = 0
COMMIT: Final = 1
UNKNOWN_TYPE: Final = -1
"""Type of a control batch without a valid key."""

_KEY: Final = struct.Struct(">hh")  # version, type
_VALUE: Final = struct.Struct(">hi")  # version, coordinator epoch
_VERSION: Final = 0


class EndTransactionMarker(NamedTuple):
    """The content of a control batch that ends a transaction."""

    is_abort: bool
    coordinator_epoch: int
    timestamp: int


def encode_end_marker(
    *,
    commits: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = 0,
) -> bytes:
    """Return the control batch that commits or aborts a producer's transaction."""
    return encode_batch(
        [timestamp],
        [_KEY.pack(_VERSION, COMMIT if commits else ABORT)],
        [_VALUE.pack(_VERSION, coordinator_epoch)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer=(producer_id, producer_epoch, NO_SEQUENCE),
        is_transactional=True,
        is_control=True,
    )


def decode_end_marker(data: Buffer, position: int = 0) -> EndTransactionMarker | None:
    """Return the marker of a control batch.

    None if the marker was cleaned away or its type does not end a transaction. Raises MalformedBatchError.
    """
    columns = decode_batch(data, position, verify=False)
    if not len(columns):
        return None
    record = columns.record(0)
    kind = _type_of(record.key)
    if kind not in {ABORT, COMMIT} or record.value is None or len(record.value) < _VALUE.size:
        return None
    _, coordinator_epoch = _VALUE.unpack_from(record.value)
    return EndTransactionMarker(kind == ABORT, coordinator_epoch, record.timestamp)


def control_type(batch: Buffer) -> int:
    """Return the type of a control batch that has its record: `ABORT`, `COMMIT` or another."""
    return _type_of(decode_batch(batch, verify=False).record(0).key)


def _type_of(key: bytes | None) -> int:
    if key is None or len(key) < _KEY.size:
        return UNKNOWN_TYPE
    _, kind = _KEY.unpack_from(key)
    return int(kind)
