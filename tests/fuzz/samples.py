"""Valid batches of every kind, as input for fuzz targets."""

from __future__ import annotations

from object_format.codecs.codec import Codec
from object_format.record_batch.headers import BATCH_OVERHEAD
from object_format.record_batch.records import encode_batch

NOW = 1_700_000_000_000


def logs() -> list[bytes]:
    """Return one log for each codec with all features of batches, and one log with alternating codecs."""
    found = [b"".join(_batches(codec)) for codec in Codec]
    return [
        *found,
        b"".join(batch for batches in zip(*map(_batches, Codec), strict=True) for batch in batches),
    ]


def _batches(codec: Codec) -> list[bytes]:
    base = 100 * codec
    return [
        encode_batch([NOW, NOW + 5], [b"a", b"b"], [b"v" * 20, None], codec=codec, base_offset=base),
        encode_batch([NOW], [b"a"], [b"w" * 70], [[("h", b"x")]], codec=codec, base_offset=base + 5),
        encode_batch([NOW], [b"b"], [None], codec=codec, base_offset=base + 6, delete_horizon_ms=NOW - 1),
        encode_batch(
            [NOW] * 3, [b"c", None, b"k" * 40], [b""] * 3, codec=codec, base_offset=base + 10,
            offset_deltas=[0, 3, 70], last_offset_delta=71,
        ),
        encode_batch([NOW], [b"\0\0\0\1"], [b""], codec=codec, base_offset=base + 90, is_control=True),
    ]  # fmt: skip


def with_records(data: bytes) -> bytes:
    """Return a batch with valid header and arbitrary records: `data` without its first two bytes.

    The two bytes select the codec and the record count.
    """
    codec = Codec(data[0] % len(Codec)) if data else Codec.NONE
    count = data[1] if len(data) > 1 else 0
    batch = bytearray(encode_batch([0], [b""], [data[2:]], codec=codec, last_offset_delta=300))
    # Without compression, the record around `data` can be removed.
    if codec is Codec.NONE:
        batch = batch[:BATCH_OVERHEAD] + data[2:]
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big")
    return bytes(batch)
