"""Check every byte of live files: blocks, batches, and what the catalog says about their extents."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from pyroaring import BitMap64

from core.errors import CorruptDataError, InvalidInputError, NotFoundError
from maintenance.fsck.report import Difference, DifferenceKind
from maintenance.fsck.unique_keys import repeated_keys
from object_format.bitmaps import bitmap_between, bitmap_of
from object_format.holes import survivors_between
from object_format.record_batch.headers import iter_headers, verify_checksum
from object_format.record_batch.records import decode_batch
from object_format.segment_file import ForwardReader, UnsupportedFormatError, format_fault
from object_store.accounting import Purpose

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    import numpy.typing as npt

    from catalog.lifecycle.garbage import CatalogFile
    from catalog.model import Extent
    from maintenance.fsck.producers import ProducerCheck
    from maintenance.fsck.report import Findings
    from object_format.record_batch.headers import BatchHeader
    from object_format.segment_file import DataBlock
    from object_store.interface import ObjectStore

BLOCK_HEADER_LENGTH = 12
_PENDING_OFFSETS = 1 << 17
_REMEDY = "restore the object from a copy, or delete its records"


@dataclass(slots=True)
class _Seen:
    """Contents of one extent, as far as they have been read.

    `offsets` are the offsets that have a record, as a Roaring bitmap, which stays small for dense and sparse
    extents.
    """

    extent: Extent
    offsets: BitMap64 = field(default_factory=BitMap64)
    records: int = 0
    next_offset: int = 0
    max_timestamp: int = -1
    disorder: str | None = None
    start: int | None = None
    end: int = 0
    _pending: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _pending_count: int = 0

    def add(self, offsets: npt.NDArray[np.int64]) -> None:
        """Add the offsets of a batch; the bitmap takes them in large groups, which is faster."""
        self.records += offsets.size
        self._pending.append(offsets.copy())  # copies only this column
        self._pending_count += offsets.size
        if self._pending_count >= _PENDING_OFFSETS:
            self.flush()

    def flush(self) -> None:
        """Flush pending offsets into `offsets`."""
        if self._pending:
            self.offsets |= bitmap_of(np.unique(np.concatenate(self._pending)))
        self._pending.clear()
        self._pending_count = 0


class FileCheck:
    """Checks one file at a time; memory is one reader's, plus the bitmaps of one section."""

    def __init__(
        self,
        store: ObjectStore,
        findings: Findings,
        topic_names: Mapping[UUID, str],
        producers: ProducerCheck,
        clear_unique_keys: Callable[[Extent], None] | None = None,
    ) -> None:
        """`clear_unique_keys` repairs the flag of an extent whose keys occur twice; None reports only."""
        self._store = store
        self._producers = producers
        self._clear_unique_keys = clear_unique_keys
        self._findings = findings
        self._topic_names = topic_names

    def check(self, file: CatalogFile, extents: Sequence[Extent]) -> None:
        """Read `file` from byte 0 to its end and compare it with its live `extents`.

        A file that needs a newer Siltstone is reported, and not read.
        """
        if any(self._is_unsupported(extent) for extent in extents[:1]):
            return
        stream = self._store.open_stream(file.object_name, purpose=Purpose.FSCK)
        try:
            self._read(ForwardReader(stream, name=file.object_name, size=file.size), file, extents)
            self._check_keys(extents)
            self._producers.compare()
        except UnsupportedFormatError as error:
            self._unsupported(file.object_name, error.message)
        except NotFoundError:
            return  # the comparison with the listing reports it
        except (CorruptDataError, InvalidInputError) as error:
            self._findings.add(
                Difference(
                    kind=DifferenceKind.CORRUPT,
                    object_name=file.object_name,
                    expected="a sound segment file",
                    found=error.message,
                    remedy=_REMEDY,
                )
            )
        finally:
            stream.close()
        self._findings.count("files_read")

    def _is_unsupported(self, extent: Extent) -> bool:
        fault = format_fault(extent.format.version, extent.format.required_features)
        if fault is not None:
            self._unsupported(extent.object_name, f"a file that {fault}")
        return fault is not None

    def _unsupported(self, name: str, found: str) -> None:
        self._findings.add(
            Difference(
                kind=DifferenceKind.UNSUPPORTED,
                object_name=name,
                expected="a file that this version can read",
                found=found,
                remedy="run fsck of the Siltstone that the agents run",
            )
        )

    def _check_keys(self, extents: Sequence[Extent]) -> None:
        """Read extents with unique keys again, and report keys that occur twice."""
        for extent in extents:
            repeated = repeated_keys(self._store, extent) if extent.unique_keys else 0
            if not repeated:
                continue
            if self._clear_unique_keys is not None:
                self._clear_unique_keys(extent)
            self._findings.add(
                Difference(
                    kind=DifferenceKind.UNIQUE_KEYS,
                    object_name=extent.object_name,
                    topic=self._topic_names.get(extent.topic_id, str(extent.topic_id)),
                    partition=extent.partition,
                    expected=f"each key once at offsets {extent.base_offset} to {extent.last_offset}",
                    found=f"{repeated} records with a key that another one has",
                    remedy="siltstone fsck --deep --repair has the partition deduplicated again",
                    repaired=self._clear_unique_keys is not None,
                )
            )

    def _read(self, reader: ForwardReader, file: CatalogFile, extents: Sequence[Extent]) -> None:
        if reader.header.file_id != file.file_id:
            self._content(file.object_name, None, f"file {file.file_id}", f"file {reader.header.file_id}")
        left = _by_section(extents)
        while (section := reader.next_section()) is not None:
            seen = left.pop(section.key, [])
            self._findings.count("sections_read")
            for block in reader.blocks():
                self._read_block(block, seen)
            holes, footer = reader.holes, reader.footer
            survivors = (
                None if holes is None else survivors_between(holes, footer.base_offset, footer.last_offset)
            )
            for each in seen:
                self._conclude(file.object_name, each, survivors)
        for seen in left.values():
            for each in seen:
                self._content(file.object_name, each.extent, "a section of this partition", "none")

    def _read_block(self, block: DataBlock, seen: Sequence[_Seen]) -> None:
        self._findings.count("blocks_read")
        for position, header in iter_headers(block.payload):
            verify_checksum(block.payload, header, position)
            self._findings.count("batches_read")
            each = _owner(seen, header)
            if each is None:
                continue  # rejected by the commit, or its extent was replaced by another file
            shift = each.extent.offset_shift
            columns = decode_batch(block.payload, position, offset_shift=shift, verify=False)
            _note(each, header)
            self._producers.add(each.extent, header)
            each.add(columns.offsets)
            each.start = block.position if each.start is None else each.start
            each.end = block.position + BLOCK_HEADER_LENGTH + len(block.payload)

    def _conclude(self, name: str, seen: _Seen, survivors: BitMap64 | None) -> None:
        extent = seen.extent
        seen.flush()
        self._findings.count("records_read", seen.records)
        if seen.disorder is not None:
            self._content(name, extent, "batches in the order of their offsets", seen.disorder)
        if seen.records != extent.record_count:
            self._content(
                name, extent, f"{extent.record_count} records", f"{seen.records}", DifferenceKind.RECORD_COUNT
            )
        if len(seen.offsets) != seen.records:
            self._content(name, extent, "one record at an offset", f"{seen.records} at {len(seen.offsets)}")
        outside = seen.start is not None and (
            seen.start < extent.position or seen.end > extent.position + extent.length
        )
        if outside:
            span = f"bytes {extent.position} to {extent.position + extent.length}"
            self._content(name, extent, f"batches in {span}", f"bytes {seen.start} to {seen.end}")
        if seen.max_timestamp > extent.max_timestamp:
            self._content(
                name, extent, f"timestamps up to {extent.max_timestamp}", f"up to {seen.max_timestamp}"
            )
        if survivors is not None:
            self._hold_against_holes(name, seen, survivors)

    def _hold_against_holes(self, name: str, seen: _Seen, survivors: BitMap64) -> None:
        """Compare the bitmap of holes with the bytes."""
        extent = seen.extent
        wrong = bitmap_between(survivors, extent.base_offset, extent.last_offset) ^ seen.offsets
        if wrong:
            self._content(
                name,
                extent,
                "holes exactly where there is no record",
                f"{len(wrong)} offsets differ, the first is {wrong[0]}",
            )

    def _content(
        self,
        name: str,
        extent: Extent | None,
        expected: str,
        found: str,
        kind: DifferenceKind = DifferenceKind.CONTENT,
    ) -> None:
        where = ""
        if extent is not None:
            where = f" at offsets {extent.base_offset} to {extent.last_offset}"
        self._findings.add(
            Difference(
                kind=kind,
                object_name=name,
                topic=self._topic_names.get(extent.topic_id, str(extent.topic_id)) if extent else None,
                partition=extent.partition if extent else None,
                expected=expected + where,
                found=found,
                remedy=_REMEDY,
            )
        )


def _by_section(extents: Sequence[Extent]) -> dict[tuple[UUID, int], list[_Seen]]:
    ordered = sorted(extents, key=lambda each: (each.topic_id, each.partition, each.base_offset))
    return {
        key: [_Seen(extent, next_offset=extent.base_offset) for extent in members]
        for key, members in groupby(ordered, key=lambda each: (each.topic_id, each.partition))
    }


def _owner(seen: Sequence[_Seen], header: BatchHeader) -> _Seen | None:
    """Return the extent that a batch belongs to (see `Extent`); a section has few."""
    for each in seen:
        base = header.base_offset + each.extent.offset_shift
        if each.extent.base_offset <= base <= each.extent.last_offset:
            return each
    return None


def _note(seen: _Seen, header: BatchHeader) -> None:
    """Check that offsets rise from batch to batch and stay in the extent."""
    base = header.base_offset + seen.extent.offset_shift
    last = base + header.last_offset_delta
    if base < seen.next_offset or last > seen.extent.last_offset:
        seen.disorder = f"a batch at offsets {base} to {last}, after {seen.next_offset - 1}"
    seen.next_offset = last + 1
    if header.record_count:
        seen.max_timestamp = max(seen.max_timestamp, header.max_timestamp)
