"""Extraction of batches from the stored bytes of an extent: cut to size, with final offsets.

No object has the bytes of control batches. They are rendered from the catalog's rows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from core.errors import CorruptDataError
from object_format.record_batch.headers import iter_headers, patch_offsets, trim_batches
from object_format.record_batch.records import encode_batch
from object_format.segment_file import parse_data_blocks

if TYPE_CHECKING:
    from agent.read.hot_tail import TailRead
    from agent.read.range_cache import ByteRange
    from catalog.model import ControlBatch, Extent


_KEY: Final = struct.Struct(">hh")  # version, type
_VALUE: Final = struct.Struct(">hi")  # version, coordinator epoch
_VERSION: Final = 0
_ABORT, _COMMIT = 0, 1
_NO_SEQUENCE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtentPart:
    """The part of one extent to read: whole DATA blocks, and of them the batches from `first_offset` on.

    `reaches_end` says that the extent has no further blocks after `range`.
    """

    extent: Extent
    range: ByteRange
    first_offset: int
    reaches_end: bool = True


@dataclass(slots=True)
class ServedBatches:
    """Batches with final offsets, in runs of whole batches.

    `next_offset` is the position of the reader. It may lie after the last batch if a hole follows. `is_cut`
    says that the byte limit was reached.
    """

    next_offset: int
    runs: list[bytearray | memoryview] = field(default_factory=list)
    size: int = 0
    is_cut: bool = False

    def serve(self, part: ExtentPart, data: memoryview, *, max_bytes: int) -> None:
        """Add the batches of `part`, whose bytes are `data`, up to `max_bytes` in all.

        The very first batch may exceed the limit. Bytes are copied once, because `data` is shared and the
        offsets are patched. Raises `CorruptDataError` after it has added the blocks before the damage.
        """
        extent = part.extent
        payloads = parse_data_blocks(
            data,
            name=extent.object_name,
            file_id=extent.file_id,
            position=part.range.position,
            section=(extent.topic_id, extent.partition),
        )
        before = len(self.runs)
        try:
            for payload in payloads:
                self._serve_block(part, payload, max_bytes)
                if self.is_cut:
                    break
        except CorruptDataError:
            self._move_behind_runs(before)
            raise
        if part.reaches_end and not self.is_cut:
            self.next_offset = extent.last_offset + 1
        else:
            self._move_behind_runs(before)

    def take(self, read: TailRead) -> None:
        """Add batches that have their final offsets already."""
        self.runs += read.batches
        self.size += read.size
        self.next_offset = read.next_offset

    def skip(self, extent: Extent, *, max_bytes: int) -> None:
        """Skip an extent without records, or add its control batch within `max_bytes` in all."""
        if extent.control is not None:
            batch = render_control_batch(extent, extent.control)
            if self.runs and self.size + len(batch) > max_bytes:
                self.is_cut = True
                return
            self.runs.append(memoryview(batch))
            self.size += len(batch)
        self.next_offset = extent.last_offset + 1

    def _move_behind_runs(self, before: int) -> None:
        """Move behind the last run if there are more than `before`."""
        if len(self.runs) > before:
            for _, header in iter_headers(self.runs[-1]):
                self.next_offset = header.next_offset

    def _serve_block(self, part: ExtentPart, payload: memoryview, max_bytes: int) -> None:
        extent = part.extent
        trim = partial(
            trim_batches,
            first_offset=part.first_offset,
            last_offset=extent.last_offset,
            offset_shift=extent.offset_shift,
        )
        wanted = trim(payload)
        kept = trim(wanted, max_bytes=max(0, max_bytes - self.size))
        self.is_cut = len(kept) < len(wanted) or (bool(self.runs) and self.size + len(kept) > max_bytes)
        if not kept or (self.runs and self.size + len(kept) > max_bytes):
            return
        run = bytearray(kept)
        patch_offsets(run, extent.offset_shift, extent.leader_epoch)
        self.runs.append(run)
        self.size += len(run)


def render_control_batch(extent: Extent, control: ControlBatch) -> bytes:
    """Return the control batch of an extent, as Kafka's coordinator writes it (EndTransactionMarker).

    The epoch of the coordinator is the leader epoch in which the transaction ended.
    """
    return encode_batch(
        [extent.committed_ms],
        [_KEY.pack(_VERSION, _COMMIT if control.commits else _ABORT)],
        [_VALUE.pack(_VERSION, extent.leader_epoch)],
        base_offset=extent.base_offset,
        leader_epoch=extent.leader_epoch,
        producer=(control.producer_id, control.producer_epoch, _NO_SEQUENCE),
        is_transactional=True,
        is_control=True,
    )
