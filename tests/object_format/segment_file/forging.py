"""Splits files into blocks and joins them with correct checksums, using only the specification."""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from tests.object_format.segment_file.samples import FILE_ID

MAGIC = bytes.fromhex("89 53 49 4c 54 0d 0a 1a")
FILE_HEADER, SECTION_HEADER, DATA, SECTION_INDEX, HOLES, SECTION_FOOTER, DIRECTORY, TRAILER = range(1, 9)
OPTIONAL = 1


class Block(NamedTuple):
    kind: int
    flags: int
    payload: bytes
    reserved: int = 0


def split(data: bytes) -> list[Block]:
    """Return the blocks of a valid file."""
    blocks = []
    position = len(MAGIC)
    while position < len(data):
        kind, flags, reserved, length, _ = struct.unpack_from(">BBHII", data, position)
        payload = data[position + 12 : position + 12 + length]
        blocks.append(Block(kind, flags, payload, reserved))
        position += 12 + length
    return blocks


def join(blocks: list[Block], *, file_id: bytes = FILE_ID.bytes) -> bytes:
    """Return the blocks as a file, each with the checksum for its position."""
    data = bytearray(MAGIC)
    for block in blocks:
        head = struct.pack(">BBHI", block.kind, block.flags, block.reserved, len(block.payload))
        checksum = crc32c(file_id + struct.pack(">Q", len(data)) + head + block.payload)
        data += head + struct.pack(">I", checksum) + block.payload
    return bytes(data)


def complete(blocks: list[Block]) -> bytes:
    """Return the file of these blocks with their directory and trailer."""
    entries = b""
    count = 0
    position = len(MAGIC)
    start = 0
    topic = b""
    parts: dict[int, tuple[int, int]] = {}
    for block in blocks:
        size = 12 + len(block.payload)
        if block.kind == SECTION_HEADER:
            start, topic, parts = position, block.payload[:20], {}
        elif block.kind in {DATA, SECTION_INDEX, HOLES}:
            first, length = parts.get(block.kind, (position, 0))
            parts[block.kind] = (first, length + size)
        elif block.kind == SECTION_FOOTER:
            base, last, records, _, _, low, high, flags, _ = struct.unpack(">qqqqQqqII", block.payload)
            entries += topic + struct.pack(">IQQ", flags, start, position + size - start)
            for kind in (DATA, SECTION_INDEX, HOLES):
                entries += struct.pack(">QQ", *parts.get(kind, (0, 0)))
            entries += struct.pack(">qqqqq", base, last, records, low, high)
            count += 1
        position += size
    length = 12 + len(entries)
    trailer = blocks[0].payload[16:32] + struct.pack(">QIIQ", position, length, count, position + length + 60)
    whole = [*blocks, Block(DIRECTORY, 0, entries), Block(TRAILER, 0, trailer + MAGIC[::-1])]
    return join(whole, file_id=blocks[0].payload[16:32])
