"""Routing of appends to the write path (object topics) or to this agent's disk (local topics)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.local_topics.local_topics import no_local_disks_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.local_topics.local_topics import LocalTopics
    from agent.write.pending_append import AppendResult, PendingAppend
    from agent.write.validation import ValidatedAppend
    from agent.write.write_path import WritePath


class AppendRouter:
    """The common entry of appends for both APIs. Belongs to the event loop."""

    def __init__(self, write_path: WritePath) -> None:
        self._write_path = write_path
        self.local_topics: LocalTopics | None = None

    async def append(self, appends: Sequence[ValidatedAppend]) -> list[list[AppendResult]]:
        """Do the same as `enqueue`, wait for the results, and return them per append and batch."""
        return [await pending.wait() for pending in self.enqueue(appends)]

    def enqueue(self, appends: Sequence[ValidatedAppend]) -> list[PendingAppend]:
        """Take batches. The order of the calls is the order in each partition's log.

        Raises `BusyError` if the buffer of object topics is full, `StoppingError` while the agent stops, and
        `NotLeaderError` for a local topic if this agent has no disks. The batches of object topics are taken
        first, all or none. Those of a local partition whose buffer is full fail alone.
        """
        local = [each for each in appends if each.topic.is_local]
        if not local:
            return self._write_path.enqueue(appends)
        if self.local_topics is None:
            raise no_local_disks_error(local[0].topic.name)
        remote = [each for each in appends if not each.topic.is_local]
        waiting = iter(self._write_path.enqueue(remote)) if remote else iter(())
        return [self.local_topics.enqueue(each) if each.topic.is_local else next(waiting) for each in appends]

    def enqueue_together(self, appends: Sequence[ValidatedAppend]) -> PendingAppend:
        """Take batches of object topics, with one pending result for all of them."""
        return self._write_path.enqueue_together(appends)
