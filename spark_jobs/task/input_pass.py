"""One pass over the inputs of a job: batches by extent, counted against what the catalog says."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from core.errors import CorruptDataError
from object_format.errors import MalformedBatchError
from spark_jobs.task.extent_cut import ExtentCutter
from spark_jobs.task.section_stream import SectionStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from catalog.model import Extent, JobSpec
    from object_store.interface import ObjectStore
    from spark_jobs.task.arrangement import InputPart, InputUse, PartitionWork
    from spark_jobs.task.counts import TaskCounts
    from spark_jobs.task.extent_cut import Piece


class InputPass:
    """The streams of one pass, one for each input that the pass needs; `check` raises to stop it.

    `uses` gives the inputs, and how long each is needed: a stream is closed once the last part of its input
    was read, so that a partition in any number of files has one of them open at a time.
    """

    def __init__(
        self,
        spec: JobSpec,
        store: ObjectStore,
        uses: Mapping[int, InputUse],
        *,
        read_size: int,
        check: Callable[[], None],
        counts: TaskCounts,
    ) -> None:
        self._inputs = spec.inputs
        self._check = check
        self._streams = {
            index: SectionStream(store, spec.inputs[index], end=use.end, read_size=read_size, counts=counts)
            for index, use in uses.items()
        }
        self._uses = uses
        self._closings: defaultdict[int, list[int]] = defaultdict(list)
        for index, use in uses.items():
            self._closings[use.last_place].append(index)
        self.largest_buffer = 0

    def read(self, work: PartitionWork, part: InputPart, take: Callable[[Piece, Extent], None]) -> None:
        """Hand the part's batches over, extent by extent; they are valid during the call of `take` only.

        Raises CorruptDataError, naming file and place, also for malformed batches that `take` finds, and when
        an extent does not have as many records as the catalog counts.
        """
        for piece, extent, place in self.pieces(work, part):
            with placed(place):
                take(piece, extent)

    def pieces(self, work: PartitionWork, part: InputPart) -> Iterator[tuple[Piece, Extent, str]]:
        """As `read`, each valid until the next; what is done with them is `placed` by the text with them."""
        extents = [extent for extent in part.extents if extent.length]
        if not extents:
            return
        name = self._inputs[part.input_index].object_name
        stream = self._streams[part.input_index]
        cutter = ExtentCutter(extents)
        found = [0] * len(extents)
        for block in stream.blocks(work.partition_id, part):
            self._check()
            self.largest_buffer = max(self.largest_buffer, stream.buffer_size)
            place = f"{name}: partition {work.name}, block at byte {block.position}"
            with placed(place):
                pieces = cutter.pieces(block.payload)
            for piece in pieces:
                found[piece.extent_index] += piece.record_count
                yield piece, extents[piece.extent_index], place
        cut = part.cut_before or part.cut_behind  # then only all stretches together have what is counted
        for extent, count in zip(extents, found, strict=True):
            if count > extent.record_count or (count < extent.record_count and not cut):
                raise CorruptDataError(
                    f"{name}: partition {work.name} has {count} records at offsets {extent.base_offset} to"
                    f" {extent.last_offset}, where the catalog counts {extent.record_count}"
                )
        # Behind a cut, the stream has yet to tell where the next stretch begins.
        if part is self._uses[part.input_index].last_part and not part.cut_behind:
            stream.close()

    def first_offset(self, work: PartitionWork) -> int | None:
        """The offset at which the work begins, which is read next; None when a stretch has nothing of it."""
        part = work.parts[0]
        if not part.cut_before:
            return work.partition.base_offset
        return self._streams[part.input_index].first_offset(work.partition_id, part)

    def end_offset(self, work: PartitionWork) -> int:
        """The offset behind the work, which was read to its end."""
        part = work.parts[-1]
        if not part.cut_behind:
            return work.partition.upper_offset
        return self._streams[part.input_index].end_offset(part)

    @property
    def opened(self) -> set[int]:
        """The inputs that were asked for so far."""
        return {index for index, stream in self._streams.items() if stream.was_opened}

    def close_after(self, place: int) -> None:
        """Close the streams that nothing after `place` needs."""
        for index in self._closings.pop(place, ()):
            self._streams[index].close()

    def close(self) -> None:
        """Close all streams."""
        for stream in self._streams.values():
            stream.close()


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Adds file and place to an error about batches."""
    try:
        yield
    except MalformedBatchError as error:
        raise CorruptDataError(f"{where}: {error.message}", remedy=error.remedy) from error
