"""Fuzz target: arbitrary bytes as compressed records. The first byte selects the codec."""

from __future__ import annotations

import pytest

from object_format.buffers import readable
from object_format.codecs.codec import Codec, CompressedDataError, compress, decompress
from object_format.errors import MalformedBatchError
from object_format.record_batch import decompression
from object_format.record_batch.headers import scan_batches
from tests.fuzz.harness import fuzz
from tests.object_format.codecs.test_native_codecs import batch_around

LIMIT = 1 << 16


def opened(batch: bytes) -> bytes | None:
    """Return the records of a batch; None if they cannot be decompressed."""
    array = readable(batch)
    try:
        [(records, _rows)] = decompression.open_batches(array, scan_batches(array))
    except MalformedBatchError:
        return None
    return records.tobytes()


def one_input(data: bytes) -> None:
    """The output never exceeds the limit, and the kernel accepts the same data as the libraries."""
    codec = Codec(1 + data[0] % 4) if data else Codec.LZ4
    compressed = data[1:]
    try:
        found = bytes(decompress(codec, compressed, limit=LIMIT))
    except CompressedDataError:
        found = None
    assert found is None or len(found) <= LIMIT
    many = opened(batch_around(codec, compressed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decompression, "native_codec_table", lambda: None)
        assert opened(batch_around(codec, compressed)) == many
    if found is not None:
        assert many == found
        assert bytes(decompress(codec, compress(codec, found))) == found


if __name__ == "__main__":
    texts = [b"", b"abc" * 100, bytes(range(256)) * 8, bytes(20_000)]
    fuzz(
        one_input, [bytes([codec - 1]) + compress(codec, text) for codec in list(Codec)[1:] for text in texts]
    )
