"""The checksum of a block: CRC-32C over its identity, its header and its payload.

The input is the file id and the block's position in the file, which the block does not contain, then the
first eight bytes of the block's header, then the payload. A block that was moved, duplicated, or read from
another object therefore fails its own check, even if no other block is read.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from crc32c import crc32c

if TYPE_CHECKING:
    from uuid import UUID

    from object_format.segment_file.layout import BlockHeader

_PREFIX = Struct(">QBBHI")


def file_seed(file_id: UUID) -> int:
    """Return the CRC of the file id, which is the start of all checksums of the file."""
    return int(crc32c(file_id.bytes))


def block_seed(seed: int, position: int, header: BlockHeader) -> int:
    """Return the checksum after position and header; `extend` adds the payload."""
    prefix = _PREFIX.pack(position, header.kind, header.flags, header.reserved, header.length)
    return int(crc32c(prefix, seed))


def extend(checksum: int, data: bytes | bytearray | memoryview) -> int:
    """Return the checksum after `data`. The interpreter lock is released for long data."""
    return int(crc32c(data, checksum))
