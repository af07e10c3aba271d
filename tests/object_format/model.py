"""Record batches in slow and simple Python, as a reference for the kernels.

It uses only the plain values `Record` and `Codec` of object_format, so that one mistake cannot affect both
sides.
"""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import cramjam
import lz4.frame

from object_format.codecs.codec import Codec
from object_format.codecs.zstd_library import zstd
from object_format.record_batch.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

INT64 = 2**64


class ModelError(Exception):
    """The bytes are not a record batch."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch with all fields of its header. Records have absolute offsets and timestamps."""

    records: tuple[Record, ...] = ()
    base_offset: int = 0
    last_offset_delta: int = 0
    leader_epoch: int = 0
    attributes: int = 0
    base_timestamp: int = 0
    max_timestamp: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    record_attributes: int = field(default=0)

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


def batch_of(records: Sequence[Record], *, codec: Codec = Codec.NONE, **fields: int) -> Batch:
    """Return a batch as a producer creates it, from records with offsets."""
    base = records[0].offset
    made = Batch(
        records=tuple(records),
        base_offset=base,
        last_offset_delta=records[-1].offset - base,
        base_timestamp=records[0].timestamp,
        max_timestamp=max(record.timestamp for record in records),
        attributes=int(codec),
    )
    return replace(made, **fields)  # type: ignore[arg-type]  # `records` is not among them


def _remainder(byte: int) -> int:
    """Divide one byte by the polynomial of CRC-32C (Castagnoli), bit by bit."""
    for _ in range(8):
        byte = byte >> 1 ^ 0x82F63B78 * (byte & 1)
    return byte


_REMAINDERS = [_remainder(byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    """Compute CRC-32C (Castagnoli)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _REMAINDERS[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def write_varint(value: int) -> bytes:
    """Encode a zigzag varint of any width."""
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    out = []
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


class Reader:
    """Consumes values from the start of a byte string."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        if count > len(self.data):
            raise ModelError("short")
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def varint(self, bits: int) -> int:
        raw = 0
        for i in range(5 if bits == 32 else 10):
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                raw %= 1 << bits
                return raw >> 1 if raw % 2 == 0 else -(raw >> 1) - 1
        raise ModelError("endless varint")

    def nullable(self) -> bytes | None:
        length = self.varint(32)
        return None if length < 0 else self.take(length)


def encode_record(record: Record, batch: Batch) -> bytes:
    parts = [
        bytes([batch.record_attributes]),
        write_varint(record.timestamp - batch.base_timestamp),
        write_varint(record.offset - batch.base_offset),
    ]
    for part in (record.key, record.value):
        parts += [write_varint(-1 if part is None else len(part)), part or b""]
    parts.append(write_varint(len(record.headers)))
    for name, value in record.headers:
        parts += [write_varint(len(name.encode())), name.encode()]
        parts += [write_varint(-1 if value is None else len(value)), value or b""]
    body = b"".join(parts)
    return write_varint(len(body)) + body


def encode(batch: Batch) -> bytes:
    """Return the bytes of a batch."""
    return encode_with_records(batch, b"".join(encode_record(record, batch) for record in batch.records))


def encode_with_records(batch: Batch, records: bytes, *, count: int | None = None) -> bytes:
    """Return a batch around arbitrary encoded records."""
    covered = struct.pack(
        ">hiqqqhii",
        batch.attributes,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        len(batch.records) if count is None else count,
    ) + compress(Codec(batch.attributes & 7), records)
    return (
        struct.pack(">qiibI", batch.base_offset, len(covered) + 9, batch.leader_epoch, 2, crc32c(covered))
        + covered
    )


def decode_all(data: bytes, *, verify: bool = True) -> list[Batch]:
    """Decode `data`, which must consist of complete batches."""
    batches = []
    while data:
        if len(data) < 61:
            raise ModelError("short header")
        size = int.from_bytes(data[8:12], "big", signed=True) + 12
        if not 61 <= size <= len(data):
            raise ModelError("batch length")
        batches.append(decode(data[:size], verify=verify))
        data = data[size:]
    return batches


def decode(data: bytes, *, verify: bool = True) -> Batch:
    """Decode `data`, which must be one batch."""
    base_offset, _length, leader_epoch, magic, crc = struct.unpack_from(">qiibI", data)
    attributes, last_delta, base_timestamp, max_timestamp, producer_id, epoch, sequence, count = (
        struct.unpack_from(">hiqqqhii", data, 21)
    )
    if magic != 2 or attributes & 7 > 4 or count < 0 or last_delta < max(0, count - 1):
        raise ModelError("header")
    if verify and crc32c(data[21:]) != crc:
        raise ModelError("checksum")
    batch = Batch(
        base_offset=base_offset,
        last_offset_delta=last_delta,
        leader_epoch=leader_epoch,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    reader = Reader(decompress(Codec(attributes & 7), data[61:]))
    if count * 7 > len(reader.data):
        raise ModelError("count")
    records = [decode_record(reader, batch) for _ in range(count)]
    deltas = [record.offset - base_offset for record in records]
    if reader.data or any(a >= b for a, b in zip([-1, *deltas], [*deltas, last_delta + 1], strict=True)):
        raise ModelError("records")
    return replace(batch, records=tuple(records))


def decode_record(reader: Reader, batch: Batch) -> Record:
    length = reader.varint(32)
    if length < 0:
        raise ModelError("record length")
    body = Reader(reader.take(length))
    body.take(1)
    timestamp = signed(batch.base_timestamp + body.varint(64))
    offset = batch.base_offset + body.varint(32)
    key, value = body.nullable(), body.nullable()
    headers = [decode_header(body) for _ in range(header_count(body))]
    if body.data:
        raise ModelError("record has bytes left")
    stamped = batch.attributes & 8
    return Record(offset, batch.max_timestamp if stamped else timestamp, key, value, tuple(headers))


def header_count(body: Reader) -> int:
    count = body.varint(32)
    if not 0 <= count <= len(body.data):
        raise ModelError("header count")
    return count


def decode_header(body: Reader) -> tuple[str, bytes | None]:
    name = body.nullable()
    if name is None:
        raise ModelError("header without a name")
    return name.decode(errors="replace"), body.nullable()


def signed(value: int) -> int:
    """Wrap to 64 bits like Java."""
    return (value + INT64 // 2) % INT64 - INT64 // 2


def compress(codec: Codec, data: bytes) -> bytes:
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return gzip.compress(data, mtime=0)
        case Codec.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(data))
        case Codec.LZ4:
            return bytes(lz4.frame.compress(data, store_size=False))
        case Codec.ZSTD:
            stream = zstd.ZstdCompressor()
            return stream.compress(data) + stream.flush()


def decompress(codec: Codec, data: bytes) -> bytes:
    try:
        match codec:
            case Codec.NONE:
                return data
            case Codec.GZIP:
                return gzip.decompress(data)
            case Codec.SNAPPY:
                return decompress_snappy(data)
            case Codec.LZ4:
                return bytes(lz4.frame.decompress(data))
            case Codec.ZSTD:
                return zstd.ZstdDecompressor().decompress(data)
    except (OSError, EOFError, RuntimeError, zstd.ZstdError, cramjam.DecompressionError) as error:
        raise ModelError("compressed bytes") from error


def decompress_snappy(data: bytes) -> bytes:
    if not data.startswith(b"\x82SNAPPY\x00"):
        return bytes(cramjam.snappy.decompress_raw(data))
    out = b""
    reader = Reader(data[16:])
    while reader.data:
        out += bytes(cramjam.snappy.decompress_raw(reader.take(struct.unpack(">i", reader.take(4))[0])))
    return out


def records_of(batches: Iterable[Batch]) -> list[Record]:
    return [record for batch in batches for record in batch.records]
