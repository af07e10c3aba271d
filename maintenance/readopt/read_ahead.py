"""Reads of lost files before their turn, in threads.

Lost files are committed one after another, but reading them needs no order, and a read from S3 takes several
round trips.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from object_store.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from maintenance.readopt.lost_files import LostFile

T = TypeVar("T")
READS_AT_ONCE: Final = 8


class ReadAhead(Generic[T]):
    """Reads `files` with `read`, at most `READS_AT_ONCE` of them before their turn.

    A context manager: at its end, no read is under way. An event loop, which may not wait, calls `cancel`
    instead. For use by one thread at a time.
    """

    def __init__(self, files: Iterable[LostFile], read: Callable[[LostFile], T]) -> None:
        self._rest = iter(files)
        self._read = read
        self._reads: deque[tuple[LostFile, Future[T]]] = deque()
        self._threads = ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="siltstone-lost-file")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def take(self, lost: LostFile) -> T:
        """Return what was read from a file, or raise the error of its read.

        A file is read again if the store was away at its first read. The files must be taken in their order.
        Those before it are skipped.
        """
        self._read_ahead()
        while self._reads:
            file, read = self._reads.popleft()
            self._read_ahead()
            if file is lost:
                try:
                    return read.result()
                except StoreUnavailableError:  # it may be back, and one outage fails all early reads
                    return self._read(lost)
        raise ValueError(f"{lost.object_name} is not one of the files, or was taken before")

    def cancel(self) -> None:
        """Cancel the reads that have not begun. The others end later."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read_ahead(self) -> None:
        while len(self._reads) < READS_AT_ONCE and (lost := next(self._rest, None)) is not None:
            self._reads.append((lost, self._threads.submit(self._read, lost)))
