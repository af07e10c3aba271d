"""How a job's input is cut into shares: stretches of the log of about equal size, whatever its files are.

Small files go together, whole. A file that is larger than a share has shares of its own, each of which reads
a *stretch* of it: the blocks that begin in a range of bytes. Where one begins is not asked before: the plan
cuts anywhere, and a reader finds the first block behind the cut, for blocks prove themselves
(`object_format.segment_file.range_reader`). So a share costs a ranged GET in each pass and nothing besides.

The offset at which a stretch begins is that of its first block; it ends where the next one's first block
begins, which the reader that has reached that block sees. Neighbours thus agree on their borders without
having heard of each other, and the offsets of a stretch that no block begins in belong to the one before.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final

from spark_jobs.task.arrangement import Stretch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spark_jobs.task.arrangement import InputPart, PartitionWork

MAX_SHARES: Final = 1024
_WHOLE_UP_TO: Final = 1.5
"""Shares that a file may fill and still be read as a whole."""

_SNAP: Final = 0.25
"""Part of a share by which a cut is moved where that spares it going through a section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSizes:
    """Into what a job is cut: shares of `share_bytes` of input, their compacted files being of that order.

    At least `least_shares` of them where there is so much, for the job is there to be spread; but no file is
    cut into pieces below `least_piece_bytes`.
    """

    share_bytes: int = 256 << 20
    least_shares: int = 8
    least_piece_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True)
class Share:
    """What one task reads in pass 1, and one in pass 2: input files, or a stretch of a single one."""

    inputs: tuple[int, ...]
    stretch: Stretch | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of the partition at `place` in the job; `number` counts its runs in the share.

    `work` is narrowed to it. Of a file that is cut its offsets are those of the whole part, of which the run
    has the blocks in its stretch.
    """

    place: int
    number: int
    work: PartitionWork


def make_shares(works: Sequence[PartitionWork], sizes: ShareSizes) -> tuple[Share, ...]:
    """The inputs that hold anything, in the order of the log, cut where about equal bytes are together.

    Files were committed one after the other, so their parts lie in the same order in every partition, and
    neighbours in this order are neighbours there: runs are few. Where they are not, there are more.
    How many shares there are, and what is cut, goes by the bytes of data; which whole files go together by
    the bytes that are read for these, from the first section to the end of the last.
    """
    sections = _sections(works)
    bytes_of = {index: sum(end - start for start, end in each) for index, each in sections.items()}
    total = sum(bytes_of.values())
    wanted = min(max(-(-total // sizes.share_bytes), sizes.least_shares), MAX_SHARES)
    share_bytes = max(total / wanted, 1.0)
    piece_bytes = max(share_bytes, sizes.least_piece_bytes)
    shares: list[Share] = []
    order = _in_order_of_the_log(works)
    for is_cut, indexes in groupby(order, key=lambda index: bytes_of[index] > _WHOLE_UP_TO * piece_bytes):
        if not is_cut:
            files = list(indexes)
            count = round(sum(bytes_of[index] for index in files) / share_bytes)
            shares += _of_whole_files(files, count, sections)
            continue
        for index in indexes:
            shares += _of_one_file(index, sections[index], bytes_of[index], piece_bytes)
    return tuple(shares)


def runs_of(works: Sequence[PartitionWork], share: Share) -> list[Run]:
    """The runs of a share, in the order of sections in files: one pass over the job's parts.

    Every part is read by some share, so that those between two of this one part its runs. So do the borders
    of spells.
    """
    mine = frozenset(share.inputs)

    def reads(part: InputPart) -> bool:
        return part.input_index in mine and (share.stretch is None or _begins_in(part, share.stretch))

    runs: list[Run] = []
    for place, work in enumerate(works):
        groups = groupby(work.parts, key=lambda part: (reads(part), part.spell))
        stretches = [list(parts) for (is_mine, _), parts in groups if is_mine]
        for number, parts in enumerate(stretches):
            narrowed = [replace(part, stretch=share.stretch) for part in parts] if share.stretch else parts
            runs.append(Run(place, number, work.narrowed(narrowed)))
    return runs


def _begins_in(part: InputPart, stretch: Stretch) -> bool:
    """Whether the stretch has any of the part's bytes; one without bytes goes with the file's start."""
    if not part.has_bytes:
        return stretch.start == 0
    return part.data_start < stretch.end and stretch.start < part.data_end


def _sections(works: Sequence[PartitionWork]) -> dict[int, list[tuple[int, int]]]:
    """For each input, from where to where the data of its sections goes, in the order of the file."""
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for work in works:
        for part in work.parts:
            found[part.input_index] += [(part.data_start, part.data_end)] if part.has_bytes else []
    return {index: sorted(each) for index, each in found.items()}


def _in_order_of_the_log(works: Sequence[PartitionWork]) -> list[int]:
    committed: dict[int, int] = {}
    order: defaultdict[int, float] = defaultdict(float)
    for work in works:
        for number, part in enumerate(work.parts):
            index = part.input_index
            first = min(extent.committed_ms for extent in part.extents)
            committed[index] = min(committed.get(index, first), first)
            order[index] = max(order[index], (number + 1) / len(work.parts))
    return sorted(committed, key=lambda index: (committed[index], order[index], index))


def _of_whole_files(
    files: Sequence[int], count: int, sections: Mapping[int, Sequence[tuple[int, int]]]
) -> Iterator[Share]:
    """`count` groups of files at the most, and as even as whole files allow by what is read of each."""
    read = [each[-1][1] - each[0][0] if (each := sections[index]) else 0 for index in files]
    count = min(max(count, 1), len(files))
    total = sum(read)
    groups: list[list[int]] = [[] for _ in range(count)]
    before = 0
    for index, size in zip(files, read, strict=True):
        middle = before + size / 2
        groups[min(int(middle * count / total), count - 1) if total else 0].append(index)
        before += size
    return (Share(tuple(group)) for group in groups if group)


def _of_one_file(
    index: int, sections: Sequence[tuple[int, int]], size: int, piece_bytes: float
) -> Iterator[Share]:
    count = -(-size // int(piece_bytes))
    cuts = {_cut_at(sections, size * number // count, piece_bytes) for number in range(1, count)}
    borders = sorted({0, *cuts, sections[-1][1]})
    return (Share((index,), Stretch(start, end)) for start, end in pairwise(borders))


def _cut_at(sections: Sequence[tuple[int, int]], wanted: int, piece_bytes: float) -> int:
    """The byte of the file behind `wanted` bytes of data, or the border of a section that is near."""
    before = 0
    for start, end in sections:
        inside = wanted - before
        if inside < end - start:
            near = _SNAP * piece_bytes
            if inside <= near:
                return start
            return end if end - start - inside <= near else start + inside
        before += end - start
    return sections[-1][1]
