"""Writing blocks: headers and checksums around payloads that stay where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import FatalError, InvalidInputError
from object_format.segment_file.checksum import block_seed, extend
from object_format.segment_file.layout import BLOCK_HEADER, MAX_PAYLOAD, BlockHeader, BlockType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Piece = bytes | memoryview


class BlockSink:
    """Counts the bytes that go to the sink; once anything went wrong on the way, nothing more goes."""

    def __init__(self, sink: Callable[[Piece], object], seed: int) -> None:
        self._sink = sink
        self.seed = seed
        self._failed = False
        self.position = 0

    def check(self) -> None:
        """Raises FatalError when an earlier write failed."""
        if self._failed:
            raise FatalError("writing this segment file failed earlier", remedy="write the file anew")

    def put(self, data: Piece) -> None:
        """Bytes outside any block."""
        self.check()
        self._failed = True
        self._sink(data)
        self._failed = False
        self.position += len(data)

    def put_block(self, kind: BlockType, payload: Sequence[Piece], flags: int = 0) -> tuple[int, int]:
        """One block whose payload is the concatenation of `payload`; returns its position and length."""
        length = sum(map(len, payload))
        if length > MAX_PAYLOAD:
            self._failed = True
            raise InvalidInputError(
                f"a {kind.name} payload of {length} bytes is above the limit of {MAX_PAYLOAD}"
            )
        position = self.position
        checksum = block_seed(self.seed, position, BlockHeader(kind, flags, 0, length, 0))
        for piece in payload:
            checksum = extend(checksum, piece)
        self._put_checked(kind, flags, payload, length, checksum)
        return position, self.position - position

    def put_data(self, payload: Sequence[Piece], length: int, checksum: int) -> None:
        """A DATA block whose length and checksum are known."""
        self._put_checked(BlockType.DATA, 0, payload, length, checksum)

    def _put_checked(
        self, kind: BlockType, flags: int, payload: Sequence[Piece], length: int, checksum: int
    ) -> None:
        self.put(BLOCK_HEADER.pack(kind, flags, 0, length, checksum))
        self._failed = True
        for piece in payload:
            self._sink(piece)
        self._failed = False
        self.position += length
