"""Pass 2 for a piece that pass 1 has open, in few steps: two calls of kernels and its batches' checksums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from object_format.codecs.native import SCRATCH_BYTES
from object_format.dedupe.filtered import FilteredBatches, new_totals, sum_up_filtered
from object_format.dedupe.sealing import seal
from object_format.errors import MalformedBatchError
from object_format.kernels.codecs.native import compress_batches
from object_format.kernels.dedupe.thinning import thin_opened

if TYPE_CHECKING:
    from object_format.buffers import Bytes
    from object_format.codecs.native import Calls
    from object_format.dedupe.ahead import RetainedPiece
    from object_format.dedupe.rewriting import Rewriting
    from object_format.dedupe.survivor_bitmap import Judged
    from object_format.record_batch.payloads import CodecTimes

_NO_CODEC: Final = -1


def thin_piece(
    piece: RetainedPiece,
    records: Bytes,
    judged: Judged,
    rewriting: Rewriting,
    work: Bytes,
    goal: Bytes,
    calls: Calls,
    times: CodecTimes,
) -> tuple[FilteredBatches | None, int]:
    """What `filter_rows` makes of a piece, all of whose batches were opened by `calls`, into `records`.

    It is written to `goal`, and to `work` while it is uncompressed. None where either has too little room, or
    a codec is asked for that the kernels do not know. And how many bytes of `work` that took. Raises
    MalformedBatchError.
    """
    totals = new_totals()
    unsealed = np.empty((piece.rows.size, 4), np.int64)
    horizon = rewriting.delete_horizon_ms
    fault, position, length, count = thin_opened(
        piece.data,
        records,
        piece.rows,
        piece.offset_shift,
        piece.leader_epoch,
        judged.offsets,
        judged.tombstones,
        horizon is not None,
        horizon or 0,
        rewriting.merge,
        *rewriting.most_merged,
        SCRATCH_BYTES,
        work,
        unsealed,
        totals,
    )
    if fault:
        raise MalformedBatchError.at(fault, position)
    if length < 0:
        return None, ~length
    unsealed = unsealed[:count]
    merged_codec = _NO_CODEC if rewriting.merged_codec is None else int(rewriting.merged_codec)
    with times.compress():
        size = compress_batches(work, length, unsealed, merged_codec, goal, calls)
    if size < 0:
        return None, length
    written = goal[:size].data
    saved = seal(written, unsealed)
    return sum_up_filtered((written,) if size else (), totals, saved, 0), length
