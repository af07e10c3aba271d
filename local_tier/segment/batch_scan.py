"""Sequential scans of the record batches in a segment's file.

The functions start at the position of a batch (byte 0, or a position from an index) and go on by the batches'
length fields. They read a window of the file at a time and read a larger window for a larger batch only.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from local_tier.errors import CorruptLogError, LegacyFormatError
from object_format.errors import Fault
from object_format.kernels.batches.layout import BATCH_LENGTH, BATCH_OVERHEAD, LENGTH_OVERHEAD
from object_format.kernels.batches.log_window import FOUND, MALFORMED, end_of_whole_batches, find_batch
from object_format.record_batch.headers import scan_until_malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from local_tier.segment.append_file import AppendFile
    from object_format.buffers import Bytes
    from object_format.record_batch.headers import BatchRows

SCAN_BYTES: Final = 16 * 1024
"""Window of a scan that needs batch headers only, and what a read takes in addition to what was asked for."""

WINDOW_BYTES: Final = 4 * 2**20
"""Window of a scan that reads whole batches of a whole segment."""

_LEGACY_LENGTH: Final = 8
_LEGACY_HEADER: Final = struct.Struct(">iI")
_MAGIC: Final = 16
_LEGACY_OVERHEAD: Final = 26
"""Offset, length, checksum, magic, attributes, and the lengths of key and value."""

ANY_TIME: Final = -(2**63)
ANY_OFFSET: Final = -(2**63)
NO_END: Final = 2**63 - 1


class BatchPosition(NamedTuple):
    """Position and size of a batch in its segment's file."""

    position: int
    size: int


class WholeBatches(NamedTuple):
    """Whole batches that were read from `position`. Positions in `rows` count from the start of `data`.

    `fault` is the reason why the scan stopped before the end of `data`.
    """

    position: int
    data: Bytes
    rows: BatchRows
    fault: int

    @property
    def end(self) -> int:
        """The position after the last batch."""
        return self.position + int(self.rows["position"][-1]) + int(self.rows["size"][-1])


def read_whole_batches(file: AppendFile, position: int, size: int) -> WholeBatches:
    """Read the whole batches in the `size` bytes at `position`, or one batch alone if it is larger.

    The rows are empty when there is no whole batch at `position`. Checksums are not verified.
    """
    data = file.read(position, size)
    rows, fault, _ = scan_until_malformed(data)
    if not rows.size and fault == Fault.TRUNCATED:
        length = int.from_bytes(data[BATCH_LENGTH:LENGTH_OVERHEAD].tobytes(), "big")
        if size < LENGTH_OVERHEAD + length <= file.size - position:
            data = file.read(position, LENGTH_OVERHEAD + length)
            rows, fault, _ = scan_until_malformed(data)
    return WholeBatches(position, data, rows, fault)


def scan_file(
    file: AppendFile, start: int, window_bytes: int, on_read: Callable[[int], None] | None = None
) -> Iterator[WholeBatches]:
    """Yield all batches from position `start` on, about `window_bytes` at a time.

    `on_read` gets the number of bytes read, before they are yielded. Raises CorruptLogError where the file
    has no whole batch.
    """
    position = start
    while position < file.size:
        batches = read_whole_batches(file, position, max(window_bytes, BATCH_OVERHEAD))
        if not batches.rows.size:
            raise CorruptLogError(
                f"{file.path} has no whole batch at byte {position}: {Fault(batches.fault).explanation}"
            )
        if on_read is not None:
            on_read(batches.data.size)
        yield batches
        position = batches.end


def end_of_batches(file: AppendFile, position: int, base_offset: int) -> int:
    """Return the offset after the last whole batch from `position` on, or `base_offset` if there is none."""
    found = base_offset
    while position < file.size:
        window = file.read(position, 64 * SCAN_BYTES)
        if size_at(file, window, position) > window.size:
            window = file.read(position, size_at(file, window, position))
        end, next_offset = end_of_whole_batches(window, 0, NO_END, NO_END)
        if next_offset < 0:
            break
        found = next_offset
        position += end
    return found


def find_from(
    file: AppendFile, offset: int, timestamp: int, position: int, count: int
) -> tuple[Bytes, int, BatchPosition | None]:
    """Find the first batch at or after `position` that reaches `offset` and `timestamp`.

    Reads windows of `count` bytes. Returns the window with the batch's header, the position of that window,
    and the batch (None if there is no such batch).
    """
    while True:
        window = file.read(position, count)
        status, at, size = find_batch(window, offset, timestamp)
        if status == MALFORMED:
            raise corrupt_at(file, position + at)
        if status == FOUND:
            return window, position, BatchPosition(position + at, size)
        if position + at + BATCH_OVERHEAD > file.size:
            return window, position, None
        position += at


def size_at(file: AppendFile, window: Bytes, position: int) -> int:
    """Return the size of the batch at the start of `window` as its header says; 0 when there is none.

    `position` is the position of the window, for the message of the CorruptLogError.
    """
    status, _, size = find_batch(window, ANY_OFFSET, ANY_TIME)
    if status == MALFORMED:
        raise corrupt_at(file, position)
    return int(size) if status == FOUND else 0


def refuse_legacy(file: AppendFile, position: int) -> None:
    """Raise LegacyFormatError if there is an intact message of format v0 or v1 at `position`.

    An older Kafka has written it. Such bytes are no garbage, so no recovery may cut them off.
    """
    header = file.read(position, _LEGACY_OVERHEAD).tobytes()
    if len(header) < _LEGACY_OVERHEAD or header[_MAGIC] > 1:
        return
    length, checksum = _LEGACY_HEADER.unpack_from(header, _LEGACY_LENGTH)
    if not _LEGACY_OVERHEAD - LENGTH_OVERHEAD <= length <= file.size - position - LENGTH_OVERHEAD:
        return
    body = file.read(position + _MAGIC, length - 4)
    if zlib.crc32(body.tobytes()) == checksum:
        raise LegacyFormatError(
            f"{file.path} has a message of format v{header[_MAGIC]} at byte {position}",
            remedy="read the partition with an older Kafka, and produce its records again",
        )


def corrupt_at(file: AppendFile, position: int) -> CorruptLogError:
    """Return the error for bytes that are not a batch."""
    return CorruptLogError(f"there is no record batch at byte {position} of {file.path}")
