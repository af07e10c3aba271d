"""The batches of idempotent producers in an append or a scan, as producer state needs them."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from object_format.kernels.batches.layout import BATCH_ROW, CONTROL, NO_SEQUENCE, SEQUENCES, TRANSACTIONAL
from object_format.record_batch.control_batch import decode_end_marker

if TYPE_CHECKING:
    from object_format.buffers import Bytes
    from object_format.record_batch.control_batch import EndTransactionMarker
    from object_format.record_batch.headers import BatchRows

_COLUMNS: Final = (
    "position",
    "attributes",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "base_offset",
    "last_offset_delta",
    "max_timestamp",
)
_NAMES: Final = BATCH_ROW.names or ()
_PRODUCER_ID: Final = _NAMES.index("producer_id")
_values = itemgetter(*map(_NAMES.index, _COLUMNS))


class ProducerBatch(NamedTuple):
    """One batch of an idempotent producer. `marker` is None unless the batch ends a transaction."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    is_transactional: bool
    is_control: bool
    marker: EndTransactionMarker | None


def producer_batches(data: Bytes, rows: BatchRows) -> list[ProducerBatch]:
    """Return the batches of `rows` that have a producer id, in order. `rows` point into `data`.

    Raises MalformedBatchError for a control batch that cannot be read.
    """
    return [_producer_batch(data, *_values(row)) for row in rows.tolist() if row[_PRODUCER_ID] >= 0]


def _producer_batch(
    data: Bytes,
    position: int,
    attributes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    base_offset: int,
    delta: int,
    max_timestamp: int,
) -> ProducerBatch:
    is_control = bool(attributes & CONTROL)
    return ProducerBatch(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        last_sequence=NO_SEQUENCE if base_sequence < 0 else (base_sequence + delta) % SEQUENCES,
        base_offset=base_offset,
        last_offset=base_offset + delta,
        max_timestamp=max_timestamp,
        is_transactional=bool(attributes & TRANSACTIONAL),
        is_control=is_control,
        marker=decode_end_marker(data.data, position) if is_control else None,
    )
