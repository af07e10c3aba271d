"""Reading the batches of a segment in order, some at a time, in memory that grows for a large one alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from local_tier.errors import CorruptLogError
from object_format.errors import Fault
from object_format.kernels.batches.layout import BATCH_LENGTH, BATCH_OVERHEAD, LENGTH_OVERHEAD
from object_format.record_batch.headers import scan_until_malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from local_tier.segment.log_file import LogFile
    from object_format.buffers import Bytes
    from object_format.record_batch.headers import BatchRows


class Piece(NamedTuple):
    """Whole batches; the positions in `rows` count from the start of `data`, which lies at `position`."""

    position: int
    data: Bytes
    rows: BatchRows

    @property
    def end(self) -> int:
        """The position behind the last batch."""
        return self.position + int(self.rows["position"][-1]) + int(self.rows["size"][-1])


def read_pieces(log: LogFile, start: int, piece_bytes: int, spend: Callable[[int], None]) -> Iterator[Piece]:
    """The batches from position `start` on, which is where one begins, about `piece_bytes` at a time.

    A batch that is larger than that comes alone. `spend` is told how much was read before each piece is given
    out. Raises CorruptLogError where the file holds no whole batch.
    """
    position = start
    while position < log.size:
        piece = _read(log, position, max(piece_bytes, BATCH_OVERHEAD))
        spend(piece.data.size)
        yield piece
        position = piece.end


def _read(log: LogFile, position: int, size: int) -> Piece:
    data = log.read(position, size)
    rows, fault, _ = scan_until_malformed(data)
    if not rows.size and fault == Fault.TRUNCATED:
        length = int.from_bytes(data[BATCH_LENGTH:LENGTH_OVERHEAD].tobytes(), "big")
        if size < LENGTH_OVERHEAD + length <= log.size - position:
            data = log.read(position, LENGTH_OVERHEAD + length)
            rows, fault, _ = scan_until_malformed(data)
    if not rows.size:
        raise CorruptLogError(
            f"{log.path} holds no whole batch at byte {position}: {Fault(fault).explanation}"
        )
    return Piece(position, data, rows)
