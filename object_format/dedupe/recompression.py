"""Last step of pass 2: compresses rewritten batches and writes their checksums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from object_format.codecs.codec import Codec, compressed_parts
from object_format.codecs.native import SCRATCH_BYTES, native_codec_table
from object_format.dedupe.rewrite import FRAME_OVERHEAD, GROWTH_SHIFT
from object_format.kernels.batches.layout import (
    ATTRIBUTES,
    BATCH_LENGTH,
    BATCH_OVERHEAD,
    CODEC_MASK,
    LENGTH_OVERHEAD,
)
from object_format.kernels.codecs.native import compress_batches
from object_format.record_batch.headers import write_checksum

if TYPE_CHECKING:
    import numpy.typing as npt

    from object_format.buffers import Bytes
    from object_format.codecs.native import CodecTable

    RewrittenRows = npt.NDArray[np.int64]
    """Rows of `kernels.dedupe.merge.assemble`: start, end and codec of a batch, and its size without merging.
    """


_NO_CODEC: Final = -1


def needs_compression(rewritten: RewrittenRows, merged_codec: Codec | None) -> bool:
    """Return True if a rewritten batch has a codec, or will have one."""
    return bool(rewritten[:, 2].any()) or (bool(merged_codec) and bool(rewritten[:, 3].any()))


def write_checksums(batches: memoryview, rewritten: RewrittenRows) -> int:
    """Write the checksums of all rewritten batches; return the number of bytes that merging saved."""
    saved = 0
    for start, end, _codec, unmerged_size in rewritten.tolist():
        write_checksum(batches, start, end)
        if unmerged_size:
            saved += unmerged_size - (end - start)
    return saved


def compress_and_checksum(
    out: Bytes, length: int, rewritten: RewrittenRows, merged_codec: Codec | None
) -> tuple[list[memoryview], int]:
    """Compress the rewritten batches and write their checksums; return the buffers and the saved bytes.

    Merged batches get `merged_codec`, or keep their codec if it is None.
    """
    codec_table = native_codec_table()
    done = (
        _compress_natively(out, length, rewritten, merged_codec, codec_table)
        if codec_table is not None
        else None
    )
    return _compress_by_library(out, length, rewritten, merged_codec) if done is None else done


def _compress_natively(
    out: Bytes, length: int, rewritten: RewrittenRows, merged_codec: Codec | None, codec_table: CodecTable
) -> tuple[list[memoryview], int] | None:
    """Compress with one kernel call; return None without allocated memory if the kernel cannot do it.

    Incompressible batches grow slightly.
    """
    compressed = np.empty(length + (length >> GROWTH_SHIFT) + FRAME_OVERHEAD * len(rewritten), np.uint8)
    moved = rewritten.copy()
    codec = _NO_CODEC if merged_codec is None else int(merged_codec)
    end = compress_batches(out, length, moved, codec, compressed, codec_table)
    if end < 0:
        return None
    output = compressed[:end].data
    saved = write_checksums(output, moved)
    return [output if end > SCRATCH_BYTES else memoryview(bytes(output))], saved


def _compress_by_library(
    out: Bytes, length: int, rewritten: RewrittenRows, merged_codec: Codec | None
) -> tuple[list[memoryview], int]:
    """Compress batch by batch, with any codec."""
    parts: list[memoryview] = []
    done = saved = 0
    for start, end, attributes, unmerged_size in rewritten.tolist():
        own = Codec(attributes)
        codec = merged_codec if unmerged_size and merged_codec is not None else own
        batch = _compressed(out[start:end], codec)
        parts += (out[done:start].data, batch)
        done = end
        if unmerged_size:
            saved += unmerged_size - len(batch)
    return [*parts, out[done:length].data], saved


def _compressed(batch: Bytes, codec: Codec) -> memoryview:
    """Return a batch with uncompressed records in compressed form.

    Incompressible batches grow slightly. The parts are written in place: a growing buffer takes more memory.
    """
    result = np.empty(len(batch) + (len(batch) >> GROWTH_SHIFT) + FRAME_OVERHEAD, np.uint8)
    result[:BATCH_OVERHEAD] = batch[:BATCH_OVERHEAD]
    end = BATCH_OVERHEAD
    for part in compressed_parts(codec, batch[BATCH_OVERHEAD:].data):
        data = np.frombuffer(memoryview(part).cast("B"), np.uint8)
        result[end : end + len(data)] = data
        end += len(data)
    result[ATTRIBUTES + 1] = int(result[ATTRIBUTES + 1]) & ~CODEC_MASK | codec
    length = (end - LENGTH_OVERHEAD).to_bytes(4, "big")
    result[BATCH_LENGTH : BATCH_LENGTH + 4] = np.frombuffer(length, np.uint8)
    output = result[:end].data
    write_checksum(output, 0, end)
    return output if 2 * end > len(result) else memoryview(bytes(output))
