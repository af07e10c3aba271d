"""The keyed hash has its published values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from object_format.buffers import readable
from object_format.dedupe.fingerprints import Columns, Fingerprinter
from object_format.kernels.batches.layout import BATCH_OVERHEAD
from object_format.kernels.dedupe.fingerprints import WORDS, are_uneven, fingerprint_keys
from object_format.kernels.hashing.siphash import siphash128
from object_format.record_batch.headers import scan_batches
from object_format.record_batch.records import Record, encode_records

MASK = 2**64 - 1
KEY = bytes(range(16))


def digest(data: bytes, key: bytes) -> bytes:
    k0, k1 = (np.uint64(int.from_bytes(half, "little")) for half in (key[:8], key[8:]))
    padded = readable(b"##" + data + b"#")
    return b"".join(int(word).to_bytes(8, "little") for word in siphash128(padded, 2, len(data), k0, k1))


def model(data: bytes, key: bytes, word_rounds: int = 1, final_rounds: int = 3) -> bytes:
    """Compute SipHash with 128 bits as in the paper."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def add_rotate(a: int, b: int, bits: int) -> None:
        v[a] = (v[a] + v[b]) & MASK
        v[b] = (v[b] << bits | v[b] >> (64 - bits)) & MASK
        v[b] ^= v[a]

    def rounds(count: int) -> None:
        for _ in range(count):
            add_rotate(0, 1, 13)
            v[0] = (v[0] << 32 | v[0] >> 32) & MASK
            add_rotate(2, 3, 16)
            add_rotate(0, 3, 21)
            add_rotate(2, 1, 17)
            v[2] = (v[2] << 32 | v[2] >> 32) & MASK

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(word_rounds)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(final_rounds)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(final_rounds)
    return first.to_bytes(8, "little") + (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "a3817f04ba25a8e66df67214c7550293"),
        (b"\x00", "da87c1d86b99af44347659119b22fc45"),
    ],
)
def test_the_model_has_the_official_vectors(data: bytes, expected: str) -> None:
    """They are those of the variant with more rounds."""
    assert model(data, KEY, 2, 4).hex() == expected


def test_the_hash_equals_that_of_another_implementation() -> None:
    """The value is from the tests of the Rust crate `siphasher`."""
    assert digest(b"", KEY).hex() == "e77ebcb22788a5befd62db6add303001"


@given(st.binary(max_size=300), st.binary(min_size=16, max_size=16))
def test_the_kernel_equals_the_model(data: bytes, key: bytes) -> None:
    assert digest(data, key) == model(data, key)


@settings(max_examples=60)
@given(st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=40), st.integers(1, 40))
def test_keys_hashed_in_lanes_have_the_same_fingerprints(keys: list[bytes | None], capacity: int) -> None:
    """The result does not depend on the lengths of the keys, or on where the columns are full."""
    batch = encode_records([Record(offset=i, timestamp=0, key=key, value=None) for i, key in enumerate(keys)])
    records = readable(batch[BATCH_OVERHEAD:])
    rows = scan_batches(readable(batch))
    rows["records_start"], rows["records_end"] = 0, records.size  # as after decompression
    fingerprinter = Fingerprinter(KEY, now_ms=0)
    columns = Columns(capacity)
    cursor = np.zeros(4, np.int64)
    seen: list[bytes] = []
    more = True
    while more:
        columns.count = 0
        more = fingerprinter.fill_from(columns, records, rows, cursor, offset_shift=0)
        seen += [part.tobytes() for part in columns.words[: WORDS * columns.count].reshape(-1, WORDS)]
    assert len(seen) == len(keys)
    for fingerprint, key in zip(seen, keys, strict=True):
        if key is not None:
            expected = digest(key, KEY)[:12]
            assert fingerprint == (expected if any(expected[:4]) else b"\x01\0\0\0" + expected[4:])


@pytest.mark.parametrize(
    ("lengths", "uneven"),
    [
        ([10] * 8, False),
        ([10] * 7 + [400], False),
        ([10] * 7 + [448], True),
        ([8000] + [10] * 7, True),
        ([10] * 4 + [8000] * 4, False),
        ([1000] * 7 + [7384], False),
        ([1000] * 7 + [7392], True),
    ],
)
def test_a_key_longer_than_its_neighbors_together_is_hashed_alone(lengths: list[int], uneven: bool) -> None:
    """In lanes, each key takes as long as the longest one. The result is the same."""
    assert are_uneven(np.array(lengths), 0, max(lengths) // 8) == uneven
    lengths = [*lengths, 5, *lengths]
    data = np.random.default_rng(1).integers(0, 256, sum(lengths), np.uint8)
    starts = np.cumsum([0, *lengths[:-1]])
    k0, k1 = (np.uint64(int.from_bytes(half, "little")) for half in (KEY[:8], KEY[8:]))
    words = np.empty((len(lengths), WORDS), np.uint32)
    fingerprint_keys(data, starts, np.array(lengths), len(lengths), k0, k1, words.reshape(-1), 0)
    for start, length, found in zip(starts.tolist(), lengths, words, strict=True):
        assert found.tobytes() == model(data[start : start + length].tobytes(), KEY)[:12]
