"""Files in flight, and the groups in which they are committed.

A commit takes two round trips to the catalog and one flush of its WAL. Meanwhile other files are uploaded,
so several may wait when it ends. They share one transaction of the database: it takes one flush, and one
round trip more than it has files. With many producers, an agent thus commits more files per second.

A group is the longest sequence of files that begins with the oldest one in flight and meets these conditions:

1. They are uploaded. No file passes an earlier one, so batches of one producer stay in order.
2. They have the same session.
3. None has batches of Kafka's transactions. The commit of such batches locks their transactional ids before
   any partition (`catalog.commit`).
4. They have at most `MAX_RUNS` runs of batches, because other agents wait meanwhile for the locks of their
   partitions.

Without such a sequence, the oldest file alone is a group. Its upload may have failed. A group waits for
nothing: while commits are fast, each one has one file.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from agent.write.ingestion_buffer import OpenFile
    from agent.write.ingestion_file import SealedFile

MAX_RUNS: Final = 4_000
"""Runs of all files of a group at most. A file that has more is committed alone.

A run without an idempotent producer is a whole section, and otherwise one batch. The catalog decides about
each run, which takes 8 µs on a busy machine.
"""


@dataclass(slots=True, eq=False)
class Flight:
    """A file that is being uploaded or committed."""

    file: OpenFile
    upload: asyncio.Task[SealedFile]

    def file_to_share(self) -> SealedFile | None:
        """Return the uploaded file if it may share a commit with others."""
        upload = self.upload
        if self.file.has_transactions or not upload.done() or upload.cancelled() or upload.exception():
            return None
        return upload.result()


class FlightQueue:
    """Files in flight in the order in which they were closed. Belongs to the event loop."""

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()
        self._has_flights = asyncio.Event()

    def put(self, flight: Flight) -> None:
        """Add a file behind all others."""
        self._flights.append(flight)
        self._has_flights.set()

    async def next_group(self) -> deque[Flight]:
        """Wait until the upload of the oldest file has ended; remove and return its group, oldest first."""
        await self._has_flights.wait()
        if not self._flights[0].upload.done():
            await asyncio.wait([self._flights[0].upload])
        group = self._take_group()
        if not self._flights:
            self._has_flights.clear()
        return group

    def _take_group(self) -> deque[Flight]:
        flights = self._flights
        group = deque([flights.popleft()])
        first = group[0].file_to_share()
        if first is None:
            return group
        runs = _runs(first)
        while flights:
            following = flights[0].file_to_share()
            if following is None or following.commit.session_id != first.commit.session_id:
                break
            runs += _runs(following)
            if runs > MAX_RUNS:
                break
            group.append(flights.popleft())
        return group


def _runs(file: SealedFile) -> int:
    return sum(len(section.runs) for section in file.commit.sections)
