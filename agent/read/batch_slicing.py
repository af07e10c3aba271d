"""Extraction of batches from the stored bytes of an extent: verified, with final offsets, and cut to size.

No object has the bytes of control batches. They are rendered from the catalog's rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.read.caches.block_cache import VerifiedBlock
from object_format.buffers import readable
from object_format.kernels.batches.layout import TRANSACTIONAL
from object_format.record_batch.control_batch import encode_end_marker
from object_format.record_batch.headers import patch_offsets, scan_batches, trim_batches
from object_format.segment_file import parse_data_blocks
from object_format.segment_file.layout import BLOCK_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.read.caches.range_cache import ByteRange
    from agent.read.hot_tail import TailRead
    from catalog.model import ControlBatch, Extent


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

    def serve(self, part: ExtentPart, blocks: Iterable[VerifiedBlock], *, max_bytes: int) -> None:
        """Add the batches of `part`, whose verified blocks are given, up to `max_bytes` in all.

        The very first batch may exceed the limit.
        """
        for block in blocks:
            self._take_block(block, max_bytes)
            if self.is_cut:
                return
        if part.reaches_end:
            self.next_offset = part.extent.last_offset + 1

    def _take_block(self, block: VerifiedBlock, max_bytes: int) -> None:
        count = len(block.lasts)
        first, end = block.select(self.next_offset, max(max_bytes - self.size, 0))
        if first < count:
            if first == end and not self.runs:
                end += 1
            self.is_cut = end < count
            if first < end:
                run = block.part(first, end)
                self.runs.append(run)
                self.size += len(run)
                self.next_offset = block.lasts[end - 1] + 1

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


def verified_blocks(part: ExtentPart, data: memoryview, *, first_offset: int) -> Iterator[VerifiedBlock]:
    """Yield the batches of `part` from the one with `first_offset` on, block by block, from its bytes `data`.

    Bytes are copied once, because `data` is shared and the offsets are patched. Raises `CorruptDataError`
    after the blocks before the damage.
    """
    extent = part.extent
    payloads = parse_data_blocks(
        data,
        name=extent.object_name,
        file_id=extent.file_id,
        position=part.range.position,
        section=(extent.topic_id, extent.partition),
    )
    position = part.range.position
    covered = first_offset if position == extent.position else None
    for payload in payloads:
        position += BLOCK_HEADER.size + len(payload)
        batches = bytearray(
            trim_batches(
                payload,
                first_offset=first_offset,
                last_offset=extent.last_offset,
                offset_shift=extent.offset_shift,
            )
        )
        patch_offsets(batches, extent.offset_shift, extent.leader_epoch)
        rows = scan_batches(readable(batches))
        lasts = (rows["base_offset"] + rows["last_offset_delta"]).tolist()
        if not lasts:
            continue
        first = int(rows["base_offset"][0]) if covered is None else covered
        is_last = part.reaches_end and position >= part.range.end
        covered = extent.last_offset + 1 if is_last else lasts[-1] + 1
        starts = [*rows["position"].tolist(), len(batches)]
        yield VerifiedBlock(
            first,
            covered,
            memoryview(batches).toreadonly(),
            starts,
            lasts,
            has_transactions=bool((rows["attributes"] & TRANSACTIONAL).any()),
        )


def render_control_batch(extent: Extent, control: ControlBatch) -> bytes:
    """Return the control batch of an extent.

    The epoch of the coordinator is the leader epoch in which the transaction ended.
    """
    return encode_end_marker(
        commits=control.commits,
        producer_id=control.producer_id,
        producer_epoch=control.producer_epoch,
        coordinator_epoch=extent.leader_epoch,
        timestamp=extent.committed_ms,
        base_offset=extent.base_offset,
        leader_epoch=extent.leader_epoch,
    )
