"""Check that no key occurs twice in an extent whose keys are said to be unique.

Compaction skips work on such extents, so a wrong flag lets an old record survive. The check shares no code
with deduplication: it hashes keys with BLAKE2b, and sorts the digests. Its memory is bounded, because a large
extent is read several times, each time for another part of the digests.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np

from object_format.record_batch.records import decode_batches
from object_format.segment_file import RangeReader
from object_store.accounting import Purpose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.model import Extent
    from object_store.interface import ObjectStore

MAX_DIGESTS: Final = 1 << 23
"""Digests in memory: 128 MiB, and as much again while they are sorted."""

_DIGEST_BYTES: Final = 16
_DIGEST: Final = np.dtype((np.void, _DIGEST_BYTES))
_CHUNK: Final = 1 << 16


def repeated_keys(store: ObjectStore, extent: Extent) -> int:
    """Return the number of records with a key that another record of the extent has.

    Reads the extent once for every `MAX_DIGESTS` records. Raises CorruptDataError.
    """
    parts = -(-extent.record_count // MAX_DIGESTS)
    return sum(_repeated(store, extent, part, parts) for part in range(parts))


def _repeated(store: ObjectStore, extent: Extent, part: int, parts: int) -> int:
    chunks: list[bytes] = []
    pending: list[bytes] = []
    for key in _keys(store, extent):
        digest = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        if parts == 1 or int.from_bytes(digest[:8], "little") % parts == part:
            pending.append(digest)
            if len(pending) == _CHUNK:
                chunks.append(b"".join(pending))
                pending.clear()
    digests = np.frombuffer(b"".join([*chunks, *pending]), _DIGEST)
    return int(digests.size - np.unique(digests).size)


def _keys(store: ObjectStore, extent: Extent) -> Iterator[bytes]:
    end = extent.position + extent.length
    stream = store.open_stream(extent.object_name, extent.position, end, purpose=Purpose.FSCK)
    try:
        reader = RangeReader(
            stream, name=extent.object_name, file_id=extent.file_id, position=extent.position
        )
        reader.enter((extent.topic_id, extent.partition), end)
        for block in reader.blocks(end):
            for columns in decode_batches(block.payload, offset_shift=extent.offset_shift):
                data = columns.data
                inside = (columns.offsets >= extent.base_offset) & (columns.offsets <= extent.last_offset)
                chosen = np.flatnonzero(inside & (columns.key_length >= 0))
                starts, lengths = columns.key_start[chosen], columns.key_length[chosen]
                for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
                    yield data[start : start + length].tobytes()
    finally:
        stream.close()
