"""Division of a job's input into shares of about equal size.

Small files are grouped whole. A file that is larger than a share gets several shares, and each of them
reads a byte range of it: the blocks that start in the range. The plan cuts a section with an index at any
byte, and the reader takes the first block after the cut from the index. A section of an ingestion file has no
index, and is not cut. So a share costs one ranged GET in each pass, and a small one for the index if the
range starts inside a section.

A byte range starts at the offset of its first block. It ends where the first block of the next range starts,
which its reader sees when it reaches that block. So neighbours agree on their border without communication.
Offsets of a range in which no block starts belong to the range before.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby, pairwise, zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

from catalog.jobs.byte_ranges import ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spark_jobs.task.arrangement import InputPart, PartitionWork

MAX_SHARES: Final = 1024
_MAX_WHOLE_SHARES: Final = 1.5
"""A file that fills up to this many shares is still read as a whole."""

_SNAP_PART: Final = 0.25
"""A cut moves by up to this part of a share if it then falls between two sections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSizes:
    """Target sizes: shares of `share_bytes` of input, which also sets the size of compacted files.

    There are at least `min_shares` if the input suffices, so that the job is spread. No file is cut into
    pieces below `min_piece_bytes`.
    """

    share_bytes: int = 256 << 20
    min_shares: int = 8
    min_piece_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True)
class Share:
    """Input of one task in pass 1 and one in pass 2: whole input files, or a byte range of a single one."""

    inputs: tuple[int, ...]
    byte_range: ByteRange | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive parts of one partition of the job; `number` counts its runs in the share.

    `work` is narrowed to the run. For a cut file, its offsets are those of the whole part, and the run has
    the blocks in its byte range.
    """

    partition_index: int
    number: int
    work: PartitionWork


def make_shares(works: Sequence[PartitionWork], sizes: ShareSizes) -> tuple[Share, ...]:
    """Divide the inputs that have data, in log order, into shares of about equal bytes.

    Files were committed one after another, so their parts lie in the same order in every partition, and
    neighbours in this order are neighbours in each partition. This keeps runs few; otherwise there are only
    more of them. The number of shares and the cuts depend on bytes of data. The grouping of whole files
    depends on the bytes that are read for them, from the first section to the end of the last.
    """
    sections = _sections(works)
    bytes_of = {
        index: sum(section.end - section.start for section in each) for index, each in sections.items()
    }
    total = sum(bytes_of.values())
    wanted = min(max(-(-total // sizes.share_bytes), sizes.min_shares), MAX_SHARES)
    share_bytes = max(total / wanted, 1.0)
    piece_bytes = max(share_bytes, sizes.min_piece_bytes)
    shares: list[Share] = []
    order = _in_log_order(works)
    for is_cut, indexes in groupby(
        order, key=lambda index: bytes_of[index] > _MAX_WHOLE_SHARES * piece_bytes
    ):
        if not is_cut:
            files = list(indexes)
            count = round(sum(bytes_of[index] for index in files) / share_bytes)
            shares += _shares_of_whole_files(files, count, sections)
            continue
        for index in indexes:
            shares += _shares_of_one_file(index, sections[index], bytes_of[index], piece_bytes)
    return tuple(shares)


def runs_of(works: Sequence[PartitionWork], share: Share) -> list[Run]:
    """Return the runs of a share in the order of sections in files, in one pass over the job's parts.

    A part that another share reads ends a run, and so does the border of a retention window.
    """
    mine = frozenset(share.inputs)

    def reads(part: InputPart) -> bool:
        return part.input_index in mine and (share.byte_range is None or _overlaps(part, share.byte_range))

    runs: list[Run] = []
    for partition_index, work in enumerate(works):
        groups = groupby(work.parts, key=lambda part: (reads(part), part.window))
        own = [list(parts) for (is_mine, _), parts in groups if is_mine]
        for number, parts in enumerate(own):
            narrowed = (
                [part._replace(byte_range=share.byte_range) for part in parts] if share.byte_range else parts
            )
            runs.append(Run(partition_index, number, work.narrowed(narrowed)))
    return runs


def _overlaps(part: InputPart, byte_range: ByteRange) -> bool:
    """Return True if the range has bytes of the part; an empty part belongs to the file's start."""
    if not part.has_bytes:
        return byte_range.start == 0
    return part.data.start < byte_range.end and byte_range.start < part.data.end


class _Section(NamedTuple):
    """Data of a section: its bytes [start, end) in the file, and whether an index has its blocks."""

    start: int
    end: int
    has_index: bool


def _sections(works: Sequence[PartitionWork]) -> dict[int, list[_Section]]:
    """Return the sections with data, by input and in file order."""
    found: defaultdict[int, list[_Section]] = defaultdict(list)
    for work in works:
        for part in work.parts:
            sections = found[part.input_index]
            if part.has_bytes:
                sections.append(_Section(part.data.start, part.data.end, part.section_index is not None))
    return {index: sorted(each) for index, each in found.items()}


def _in_log_order(works: Sequence[PartitionWork]) -> list[int]:
    committed: dict[int, int] = {}
    order: defaultdict[int, float] = defaultdict(float)
    for work in works:
        for number, part in enumerate(work.parts):
            index = part.input_index
            first = min(extent.committed_ms for extent in part.extents)
            committed[index] = min(committed.get(index, first), first)
            order[index] = max(order[index], (number + 1) / len(work.parts))
    return sorted(committed, key=lambda index: (committed[index], order[index], index))


def _shares_of_whole_files(
    files: Sequence[int], count: int, sections: Mapping[int, Sequence[_Section]]
) -> Iterator[Share]:
    """Group files into at most `count` shares, as evenly as whole files allow by the bytes that are read."""
    read = [each[-1].end - each[0].start if (each := sections[index]) else 0 for index in files]
    count = min(max(count, 1), len(files))
    total = sum(read)
    groups: list[list[int]] = [[] for _ in range(count)]
    before = 0
    for index, size in zip(files, read, strict=True):
        middle = before + size / 2
        groups[min(int(middle * count / total), count - 1) if total else 0].append(index)
        before += size
    return (Share(tuple(group)) for group in groups if group)


def _shares_of_one_file(
    index: int, sections: Sequence[_Section], size: int, piece_bytes: float
) -> Iterator[Share]:
    count = -(-size // int(piece_bytes))
    cuts = {_cut_at(sections, size * number // count, piece_bytes) for number in range(1, count)}
    inner = {cut for cut in cuts if sections[0].start < cut < sections[-1].end}
    if not inner:
        return iter((Share((index,)),))
    borders = sorted({0, *inner, sections[-1].end})
    return (Share((index,), ByteRange(start, end)) for start, end in pairwise(borders))


def _cut_at(sections: Sequence[_Section], wanted: int, piece_bytes: float) -> int:
    """Return the byte of the file after `wanted` bytes of data, or a nearby start of a section.

    A section without an index is not cut: the result is then the nearer one of its ends.
    """
    before = 0
    for section, following in zip_longest(sections, sections[1:]):
        length = section.end - section.start
        inside = wanted - before
        if inside < length:
            near = _SNAP_PART * piece_bytes if section.has_index else length / 2
            if inside <= near:
                return section.start
            end = section.end if following is None else following.start
            return end if length - inside <= near else section.start + inside
        before += length
    return sections[-1].end
