"""The last step of pass 2: compression, by kernels or by the libraries, and what it counts."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace

import pytest

from object_format.codecs.codec import Codec
from object_format.dedupe import FilteredBatches, filter_batches, recompression
from object_format.record_batch.decompression import Scratch
from object_format.record_batch.records import Record, encode_batch
from tests.object_format import model, model_log
from tests.object_format.dedupe.test_dedupe import NOW
from tests.object_format.dedupe.test_long_batches import survivors_at

BY_KERNELS = [Codec.LZ4, Codec.ZSTD]
BY_LIBRARIES = [Codec.GZIP, Codec.SNAPPY]


def pair(number: int, codec: Codec, size: int, *, noise: int | None = None) -> bytes:
    """Return a batch of two records. The value of the first has `size` bytes, and begins with `noise`."""
    noise = size if noise is None else noise
    value = random.Random(number).randbytes(noise) + bytes(size - noise)
    keys = [b"a%d" % number, b"b%d" % number]
    return encode_batch([NOW] * 2, keys, [value, b""], base_offset=2 * number, codec=codec)


def without_second_records(
    data: bytes, count: int, *, merged_codec: Codec | None = None, scratch: Scratch | None = None
) -> FilteredBatches:
    """Return the output of pass 2 for so many pairs. Without a codec nothing is merged."""
    return filter_batches(
        data,
        survivors_at({2 * number for number in range(count)}, set()),
        offset_shift=0,
        leader_epoch=0,
        delete_horizon_ms=None,
        merge=merged_codec is not None,
        merged_codec=merged_codec,
        scratch=scratch,
    )


def values(data: bytes) -> list[bytes | None]:
    return [record.value for record in model.records_of(model.decode_all(data))]


@pytest.mark.parametrize("codec", BY_KERNELS + BY_LIBRARIES)
@pytest.mark.parametrize(("count", "size"), [(200, 50), (1, 300_000)])
def test_incompressible_batches_may_grow(
    codec: Codec, count: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call of a kernel compresses all of them."""
    if codec in BY_KERNELS:
        monkeypatch.delattr(recompression, "_compress_by_library")
    data = b"".join(pair(number, codec, size) for number in range(count))
    written = without_second_records(data, count)
    assert values(b"".join(written.buffers)) == [random.Random(n).randbytes(size) for n in range(count)]
    assert written.size > count * size


@pytest.mark.parametrize("codec", BY_KERNELS + BY_LIBRARIES)
def test_compression_takes_little_more_memory_than_its_result(codec: Codec) -> None:
    """The peak consists of the opened, the filtered and the compressed records, and of a copy."""
    scratch = Scratch()
    data = pair(0, codec, 500_000)
    without_second_records(data, 1, scratch=scratch)
    tracemalloc.start()
    try:
        without_second_records(data, 1, scratch=scratch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4.5 * len(data)


@pytest.mark.parametrize("codec", BY_KERNELS)
def test_a_small_result_of_kernels_keeps_no_other_memory(codec: Codec) -> None:
    """A large one is not copied."""
    data = pair(0, codec, 1000)
    for more, is_copied in ((0, True), (-1, False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recompression, "SCRATCH_BYTES", without_second_records(data, 1).size + more)
            (buffer,) = without_second_records(data, 1).buffers
        assert isinstance(buffer.obj, bytes) is is_copied


@pytest.mark.parametrize("codec", BY_LIBRARIES)
@pytest.mark.parametrize(("noise", "is_copied"), [(0.44, True), (0.56, False)])
def test_a_result_of_libraries_keeps_at_most_twice_its_memory(
    codec: Codec, noise: float, *, is_copied: bool
) -> None:
    data = pair(0, codec, 100_000, noise=int(noise * 100_000))
    buffers = without_second_records(data, 1).buffers
    (buffer,) = buffers
    assert isinstance(buffer.obj, bytes) is is_copied


@pytest.mark.parametrize("codec", [Codec.NONE, *BY_KERNELS, *BY_LIBRARIES])
@pytest.mark.parametrize("merged_codec", [None, Codec.NONE, Codec.LZ4, Codec.SNAPPY])
@pytest.mark.parametrize("stamped", [0, model_log.LOG_APPEND_TIME])
def test_merged_batches_get_a_codec_and_others_keep_theirs(
    codec: Codec, merged_codec: Codec | None, stamped: int
) -> None:
    """A batch that is not small loses a record between those that are merged. The saved bytes are exact."""
    noise = random.Random(1).randbytes(40_000)
    sources = [
        model.batch_of(
            [Record(10 * number + each, NOW, b"%d-%d" % (number, each), value) for each in range(2)],
            attributes=codec | stamped,
        )
        for number, value in enumerate((b"value", b"value", noise, b"value", b"value"))
    ]
    stored = [model.encode(each) for each in sources]
    kept = {record.offset for each in sources for record in each.records} - {20}
    written = filter_batches(
        b"".join(stored),
        survivors_at(kept, set()),
        offset_shift=0,
        leader_epoch=0,
        delete_horizon_ms=None,
        merged_codec=merged_codec,
        scratch=Scratch(),
    )
    filtered = model_log.filtered(sources, kept, leader_epoch=0, horizon=None)
    data = b"".join(written.buffers)
    made = model.decode_all(data)
    assert made == [
        model_log.merge(filtered[:2], merged_codec),
        filtered[2],
        model_log.merge(filtered[3:], merged_codec),
    ]
    assert made[1] == replace(sources[2], records=sources[2].records[1:])
    sizes = [int.from_bytes(data[8:12], "big") + 12]
    while sum(sizes) < len(data):
        sizes.append(int.from_bytes(data[sum(sizes) + 8 : sum(sizes) + 12], "big") + 12)
    saved = sum(len(each) for index, each in enumerate(stored) if index != 2) - sizes[0] - sizes[2]
    assert written.merged_bytes_saved == saved
