"""Opening batches: from rows of headers to arrays that hold their records uncompressed.

Kernels see whole runs of batches at once. Uncompressed batches are taken where they lie; compressed ones are
decompressed one by one, and small ones are laid behind each other so that a kernel is called once for many.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from object_format.buffers import Bytes, readable
from object_format.codecs import Codec, CompressedDataError, DecompressedTooLargeError, decompress
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.layout import BATCH_OVERHEAD, CODEC_MASK, SMALLEST_RECORD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

    from object_format.record_batch import BatchRows

JOINED_BYTES: Final = 1 << 20
"""Decompressed batches are joined up to this size; a larger one stands alone."""


def open_batches(data: Bytes, rows: BatchRows) -> Iterator[tuple[Bytes, BatchRows]]:
    """Runs of `rows`, in order, each with the array that their `records_start` and `records_end` point into.

    Rows of compressed batches are changed to point into their decompressed records. Raises
    MalformedBatchError for records that cannot be decompressed, or are fewer bytes than the record count
    needs.
    """
    if not rows.size:
        return
    compressed = (rows["attributes"] & CODEC_MASK) != 0
    if not compressed.any():
        yield data, rows
        return
    edges = [0, *(np.flatnonzero(np.diff(compressed)) + 1).tolist(), rows.size]
    for first, end in pairwise(edges):
        if compressed[first]:
            yield from _open_compressed(data, rows[first:end])
        else:
            yield data, rows[first:end]


def _open_compressed(data: Bytes, rows: BatchRows) -> Iterator[tuple[Bytes, BatchRows]]:
    first = 0
    parts: list[Buffer] = []
    used = 0
    for i in range(rows.size):
        records = open_records(data, rows, i)
        length = memoryview(records).nbytes
        if parts and used + length > JOINED_BYTES:
            yield readable(b"".join(parts)), rows[first:i]
            first, parts, used = i, [], 0
        rows["records_start"][i] = used
        rows["records_end"][i] = used = used + length
        parts.append(records)
    yield readable(b"".join(parts) if len(parts) > 1 else parts[0]), rows[first:]


def open_records(data: Bytes, rows: BatchRows, index: int) -> Buffer:
    """The decompressed records of one batch; MalformedBatchError when there is no such thing."""
    position, size = int(rows["position"][index]), int(rows["size"][index])
    codec = Codec(int(rows["attributes"][index]) & CODEC_MASK)
    try:
        records = decompress(codec, data[position + BATCH_OVERHEAD : position + size].data)
    except DecompressedTooLargeError as error:
        raise MalformedBatchError.at(Fault.DECOMPRESSED_TOO_LARGE, position) from error
    except CompressedDataError as error:
        raise MalformedBatchError.at(Fault.COMPRESSED_BYTES, position) from error
    if int(rows["record_count"][index]) * SMALLEST_RECORD > memoryview(records).nbytes:
        raise MalformedBatchError.at(Fault.RECORD_COUNT, position)
    return records
