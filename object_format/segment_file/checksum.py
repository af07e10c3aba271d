"""The checksum of a block: CRC-32C over where it belongs, what it is, and what it holds.

It covers the file's id and the block's position in the file, which are not stored in the block, then the
first eight bytes of its header, then its payload. A block that was copied to another location, doubled, or
served from another object therefore fails its own check, also when nothing but that block is read.
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
    """The checksum's state after the file's id; the same for all blocks of a file."""
    return int(crc32c(file_id.bytes))


def block_seed(seed: int, position: int, header: BlockHeader) -> int:
    """The checksum's state after position and header, to which `extend` adds the payload."""
    prefix = _PREFIX.pack(position, header.kind, header.flags, header.reserved, header.length)
    return int(crc32c(prefix, seed))


def extend(checksum: int, data: bytes | bytearray | memoryview) -> int:
    """The state after `data`, too; lets go of the interpreter lock while it works on long data."""
    return int(crc32c(data, checksum))
