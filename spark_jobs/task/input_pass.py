"""One pass over a job's inputs: batches by extent, with record counts checked against the catalog.

Here corrupt bytes become proof against a file (`CorruptFileError`). An error that may have another cause
never names a file: bytes that changed between the passes, or an object that is missing from a store without
a marker.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from operator import add
from typing import TYPE_CHECKING

from core.errors import CorruptDataError, CorruptFileError
from object_format.errors import Fault, MalformedBatchError
from object_store.binding import read_identity
from object_store.errors import ObjectNotFoundError, StoreUnavailableError
from spark_jobs.task.extent_cut import ExtentCutter
from spark_jobs.task.section_stream import SectionStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Executor

    from catalog.model import Extent, JobInput, JobSpec
    from object_store.interface import ObjectStore
    from spark_jobs.task.arrangement import InputPart, InputUse, PartitionWork
    from spark_jobs.task.counts import TaskCounts
    from spark_jobs.task.extent_cut import Piece


class InputPass:
    """The streams of one pass, one for each input that the pass needs.

    `uses` says how long each input is needed. A stream is closed after the last part of its input, so that a
    partition that is spread over many files has one of them open at a time. `check` is called between blocks
    and may raise to stop the pass. Records of aborted transactions are left out and counted in
    `aborted_records`.
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
        thread: Executor | None = None,
    ) -> None:
        """With `thread`, each stream reads ahead there."""
        self._inputs = spec.inputs
        self._store = store
        self._check = check
        self._streams = {
            index: SectionStream(
                store, spec.inputs[index], end=use.end, read_size=read_size, counts=counts, thread=thread
            )
            for index, use in uses.items()
        }
        self._uses = uses
        self._closings: defaultdict[int, list[int]] = defaultdict(list)
        for index, use in uses.items():
            self._closings[use.last_position].append(index)
        self.largest_buffer = 0
        self.aborted_records = 0

    def prefetch(self, part: InputPart | None) -> None:
        """Request the input of a part that will be read, if it was not requested before."""
        if part is not None and part.input_index in self._streams:
            self._streams[part.input_index].prefetch(part)

    def read(self, work: PartitionWork, part: InputPart, take: Callable[[Piece, Extent], None]) -> None:
        """Pass the part's batches to `take`, extent by extent; they are valid only during the call.

        Raise CorruptFileError, with file and position, for malformed batches (also those that `take` finds),
        and if an extent does not have as many records as the catalog counts.
        """
        for piece, extent, location in self.pieces(work, part):
            with self.located(location):
                take(piece, extent)

    def pieces(self, work: PartitionWork, part: InputPart) -> Iterator[tuple[Piece, Extent, str]]:
        """Yield the part's batches, their extent and their location; each is valid until the next.

        The caller processes each piece inside `located(text)`. Raises as `read` does.
        """
        extents = [extent for extent in part.extents if extent.length]
        if extents:
            with self._proving(part.input_index):
                yield from self._pieces(work, part, extents)

    def peek(self, part: InputPart, start: int, end: int) -> memoryview | None:
        """Return the unverified bytes [start, end) of the part's input, which stay in the stream.

        Return None if the stream does not have them. Raise as `read` does if they cannot be read.
        """
        self._check()
        stream = self._streams[part.input_index]
        with self._proving(part.input_index):
            found = stream.peek(start, end)
        self.largest_buffer = max(self.largest_buffer, stream.buffer_size)
        return found

    def skip_to(self, part: InputPart, position: int) -> None:
        """Advance the part's input to byte `position`."""
        self._streams[part.input_index].skip_to(position)

    def _pieces(
        self, work: PartitionWork, part: InputPart, extents: list[Extent]
    ) -> Iterator[tuple[Piece, Extent, str]]:
        name = self._inputs[part.input_index].object_name
        stream = self._streams[part.input_index]
        cutter = ExtentCutter(extents, work.partition.aborted)
        found = [0] * len(extents)
        for block in stream.blocks(work.partition_id, part):
            self._check()
            self.largest_buffer = max(self.largest_buffer, stream.buffer_size)
            location = f"{name}: partition {work.name}, block at byte {block.position}"
            with self.located(location):
                pieces = cutter.pieces(block.payload)
            for piece in pieces:
                found[piece.extent_index] += piece.record_count
                yield piece, extents[piece.extent_index], location
        cut = (
            part.cut_before or part.cut_behind
        )  # then only all byte ranges together have the counted records
        dropped = cutter.dropped.tolist()
        self.aborted_records += sum(dropped)
        for extent, count in zip(extents, map(add, found, dropped), strict=True):
            if count > extent.record_count or (count < extent.record_count and not cut):
                raise CorruptDataError(
                    f"{name}: partition {work.name} has {count} records at offsets {extent.base_offset} to"
                    f" {extent.last_offset}, but the catalog counts {extent.record_count}"
                )
        # After a cut the stream is still needed to find where the next byte range starts.
        if part is self._uses[part.input_index].last_part and not part.cut_behind:
            stream.close()

    def first_offset(self, work: PartitionWork) -> int | None:
        """Return the work's first offset; None if no block of it starts in the byte range."""
        part = work.parts[0]
        if not part.cut_before:
            return work.partition.base_offset
        with self._proving(part.input_index):
            return self._streams[part.input_index].first_offset(work.partition_id, part)

    def end_offset(self, work: PartitionWork) -> int:
        """Return the offset after the work, which has been read to its end."""
        part = work.parts[-1]
        if not part.cut_behind:
            return work.partition.upper_offset
        with self._proving(part.input_index):
            return self._streams[part.input_index].end_offset(part)

    @property
    def opened(self) -> set[int]:
        """Indexes of the inputs that have been requested from the store so far."""
        return {index for index, stream in self._streams.items() if stream.was_opened}

    def close_after(self, position: int) -> None:
        """Close the streams that no partition after index `position` needs."""
        for index in self._closings.pop(position, ()):
            self._streams[index].close()

    def close(self) -> None:
        """Close all streams."""
        for stream in self._streams.values():
            stream.close()

    @contextmanager
    def located(self, location: str = "") -> Iterator[None]:
        """Turn errors about batches into proof against their file; `location` begins with its name."""
        try:
            yield
        except MalformedBatchError as error:
            where = error.origin or location
            message = f"{where}: {error.message}"
            name = where.partition(": ")[0]
            file = next((each for each in self._inputs if each.object_name == name), None)
            if file is None or error.fault is Fault.SURVIVORS:
                raise CorruptDataError(message, remedy=error.remedy) from error
            raise CorruptFileError(message, file_id=file.file_id, remedy=error.remedy) from error

    @contextmanager
    def _proving(self, input_index: int) -> Iterator[None]:
        """Turn errors of reading an input into proof against it."""
        file = self._inputs[input_index]
        try:
            yield
        except ObjectNotFoundError as error:
            raise self._judge_missing(file, error) from error
        except CorruptFileError:
            raise
        except CorruptDataError as error:
            raise CorruptFileError(error.message, file_id=file.file_id, remedy=error.remedy) from error

    def _judge_missing(self, file: JobInput, error: ObjectNotFoundError) -> Exception:
        """Return the error for an object that the catalog has and the store has not.

        Every object is missing from a directory that is not mounted; so is the store's marker.
        """
        if read_identity(self._store) is None:
            return StoreUnavailableError(
                f"{error.message}, and the store {self._store.url} has no marker",
                remedy="check that this worker reaches the catalog's store: its mount, bucket and prefix",
            )
        return CorruptFileError(error.message, file_id=file.file_id, remedy=error.remedy)
