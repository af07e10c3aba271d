"""The time until which a plan without jobs stays empty, if nothing but the clock changes.

A plan depends on the time through these conditions only: the age of records against min.compaction.lag.ms
and max.compaction.lag.ms, the limits of the pace, and the times at which files of failed jobs are retried.
Each becomes true or false at a time that the snapshot contains.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from catalog.model import Extent
    from planner.plan import Wait
    from planner.snapshot import Snapshot, TopicRules


def next_change_ms(snapshot: Snapshot, waits: Iterable[Wait]) -> int | None:
    """Return the first time at which a plan of the snapshot may differ; None if it never does.

    `waits` is what the jobs of the plan wait for.
    """
    now_ms = snapshot.now_ms
    times = chain(
        (now_ms + round(wait.seconds * 1000) for wait in waits),
        (each.not_before_ms for each in snapshot.quarantine_candidates.values()),
        *(
            _times(view.rules, view.extents)
            for view in (*snapshot.partitions, *snapshot.fragmented)
            if view.rules.compacted
        ),
        _times_of_files(snapshot),
    )
    return min((time for time in times if time > now_ms), default=None)


def _times_of_files(snapshot: Snapshot) -> Iterator[int]:
    for file in snapshot.mergeable:
        for extent in file.extents:
            view = snapshot.mergeable_views.get(PartitionId(extent.topic_id, extent.partition))
            if view is not None and view.rules.compacted:
                yield from _times(view.rules, (extent,))


def _times(rules: TopicRules, extents: Iterable[Extent]) -> Iterator[int]:
    """Yield when each extent leaves min.compaction.lag.ms, and when it exceeds max.compaction.lag.ms."""
    shortest, longest = rules.cleanable_after_ms, max(rules.max_compaction_lag_ms, 0)
    for extent in extents:
        if shortest is not None:
            yield extent.max_timestamp + shortest
        yield extent.min_timestamp + longest + 1
