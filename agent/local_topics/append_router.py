"""Sends appends to the topic's home: the object store by the write path, or this agent's disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.local_topics.local_topics import no_local_disks_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.local_topics.local_topics import LocalTopics
    from agent.write.pending_append import AppendResult, PendingAppend
    from agent.write.validation import ValidatedBatches
    from agent.write.write_path import WritePath


class AppendRouter:
    """One door for both APIs. Belongs to the event loop."""

    def __init__(self, write_path: WritePath) -> None:
        self._write_path = write_path
        self.local_topics: LocalTopics | None = None

    async def append(self, appends: Sequence[ValidatedBatches]) -> list[list[AppendResult]]:
        """As `enqueue`, and wait for the results: per append and batch."""
        return [await pending.wait() for pending in self.enqueue(appends)]

    def enqueue(self, appends: Sequence[ValidatedBatches]) -> list[PendingAppend]:
        """Take batches; the calls' order is the log's order of each partition.

        Raises BusyError when a buffer has no room, StoppingError when the agent stops, NotLeaderError for a
        local topic when this agent has no disks. What belongs to the object store is taken as a whole or not
        at all, and before anything else is.
        """
        local = [each for each in appends if each.topic.is_local]
        if not local:
            return self._write_path.enqueue(appends)
        if self.local_topics is None:
            raise no_local_disks_error(local[0].topic.name)
        remote = [each for each in appends if not each.topic.is_local]
        waiting = iter(self._write_path.enqueue(remote)) if remote else iter(())
        return [self.local_topics.enqueue(each) if each.topic.is_local else next(waiting) for each in appends]

    def enqueue_together(self, appends: Sequence[ValidatedBatches]) -> PendingAppend:
        """As `enqueue`, of topics whose home is the object store, with one thing to wait for."""
        return self._write_path.enqueue_together(appends)
