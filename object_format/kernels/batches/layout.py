"""Layout of a record batch of format v2, and the row that kernels keep for each batch.

Source: Kafka's protocol documentation, "Record Batch"; KIP-98 (producer fields), KIP-534 (delete horizon).
All integers are big-endian. The CRC covers all bytes from the attributes to the end.
"""

from __future__ import annotations

from typing import Final

import numpy as np

BASE_OFFSET: Final = 0
BATCH_LENGTH: Final = 8
LEADER_EPOCH: Final = 12
KEEP_LEADER_EPOCH: Final = -1  # as an argument: each batch keeps the leader epoch in its header
MAGIC: Final = 16
CRC: Final = 17
ATTRIBUTES: Final = 21
LAST_OFFSET_DELTA: Final = 23
BASE_TIMESTAMP: Final = 27
MAX_TIMESTAMP: Final = 35
PRODUCER_ID: Final = 43
PRODUCER_EPOCH: Final = 51
BASE_SEQUENCE: Final = 53
RECORD_COUNT: Final = 57
BATCH_OVERHEAD: Final = 61
LENGTH_OVERHEAD: Final = 12
"""Bytes that the batch length does not count."""

SEQUENCES: Final = 1 << 31
"""Number of sequence numbers of a producer. After the last one, they begin at 0 again."""
NO_SEQUENCE: Final = -1
"""Base sequence of control batches, and of batches without a producer id."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
LAST_CODEC: Final = 4
PRODUCER_ATTRIBUTES: Final = CODEC_MASK | TRANSACTIONAL
"""The attribute bits that a producer may set. Only a broker sets the others, and bits from 0x80 on have no
meaning yet: a stored batch with one of them would change its meaning when the bit gets one.
"""

SMALLEST_RECORD: Final = 7
"""One byte each: length, attributes, timestamp delta, offset delta, key length, value length, header count.
"""

BATCH_ROW: Final = np.dtype(
    [
        (name, np.int64)
        for name in (
            "position",  # of the batch in the buffer
            "size",
            "base_offset",
            "crc",
            "attributes",
            "last_offset_delta",
            "base_timestamp",
            "max_timestamp",  # of the header
            "producer_id",
            "producer_epoch",
            "base_sequence",
            "record_count",
            "records_start",  # in the array with the uncompressed records
            "records_end",
            "lowest_timestamp",  # of the records, set by validate_rows
            "highest_timestamp",
            "keyless",  # number of records without a key
            "fault",
            "fault_position",
        )
    ]
)
"""One row per batch, filled by `headers.read_headers`."""
