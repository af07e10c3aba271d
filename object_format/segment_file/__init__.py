"""Segment files: one object with sections of many topic-partitions.

docs/reference/segment-file.md is the specification.
"""

from object_format.segment_file.block_payloads import FileHeader, SectionEntry, SectionFooter, SectionHeader
from object_format.segment_file.directory import Directory, read_directory
from object_format.segment_file.errors import CorruptSegmentError, NeedMoreTail
from object_format.segment_file.features import (
    UnsupportedFormatError,
    check_format,
    features_for_catalog,
    format_fault,
    stated_version,
)
from object_format.segment_file.forward_reader import DataBlock, ForwardReader
from object_format.segment_file.layout import (
    BLOCK_TARGET,
    FILE_START_LENGTH,
    MAX_PAYLOAD,
    SECTION_START_LENGTH,
    TRAILER_LENGTH,
    VERSION,
    SegmentKind,
)
from object_format.segment_file.random_access import SectionIndex, parse_data_blocks, parse_holes_block
from object_format.segment_file.range_reader import RangeReader
from object_format.segment_file.stream_buffer import ByteSource
from object_format.segment_file.verified_batches import VerifiedBatches
from object_format.segment_file.writer import FileSummary, SegmentFileWriter

__all__ = [
    "BLOCK_TARGET",
    "FILE_START_LENGTH",
    "MAX_PAYLOAD",
    "SECTION_START_LENGTH",
    "TRAILER_LENGTH",
    "VERSION",
    "ByteSource",
    "CorruptSegmentError",
    "DataBlock",
    "Directory",
    "FileHeader",
    "FileSummary",
    "ForwardReader",
    "NeedMoreTail",
    "RangeReader",
    "SectionEntry",
    "SectionFooter",
    "SectionHeader",
    "SectionIndex",
    "SegmentFileWriter",
    "SegmentKind",
    "UnsupportedFormatError",
    "VerifiedBatches",
    "check_format",
    "features_for_catalog",
    "format_fault",
    "parse_data_blocks",
    "parse_holes_block",
    "read_directory",
    "stated_version",
]
