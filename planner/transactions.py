"""Transactions in the views of partitions: what jobs drop, what they remove, and where their ranges end.

A job drops the records of aborted transactions, so it must know all that overlap its range. It also removes
the control batches directly after its extents, because readers need them no longer. There is one exception:
while records of an aborted transaction are left before the range, its control batch must stay. Records of
aborted transactions are in ingestion files only, because every job drops them.

A plan knows at most `ABORTED_OF_ONE` aborted transactions of a partition, and fewer if it has many such
partitions. If there are more, jobs take nothing from the first unknown one on. They remove those that they
know, so a later plan continues there. A partition stays as it is while more of them overlap its first extent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from catalog.model import FileKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from catalog.jobs.planning_queries import AbortedPage
    from catalog.model import AbortedTransaction, Extent, PartitionId, PartitionState
    from catalog.open import Catalog
    from planner.snapshot import PartitionView

ABORTED_OF_ONE: Final = 10_000
ABORTED_OF_ALL: Final = 100_000
MIN_ABORTED_OF_ONE: Final = 1_000
CONTROLS_AT_ONCE: Final = 10_000
"""Control batches that a job removes after one extent. More of them are a gap between jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionView:
    """A partition with its transactions taken into account.

    The last stable offset of `state` is the end of what is known. `extents` are without control batches; each
    says how many of these a job may remove with it. `records_from` is explained in `PartitionView`.
    """

    state: PartitionState
    extents: tuple[Extent, ...]
    aborted: tuple[AbortedTransaction, ...] = ()
    records_from: Mapping[int, int]


def transaction_views(
    catalog: Catalog, partitions: Mapping[PartitionId, tuple[PartitionState, Sequence[Extent]]]
) -> dict[PartitionId, TransactionView]:
    """Return the views of the partitions that have transactions and extents; takes two queries, or none.

    Look up the states and the extents of records, in offset order, before.
    """
    found = {
        key: (state, extents)
        for key, (state, extents) in partitions.items()
        if state.has_transactions and extents
    }
    if not found:
        return {}
    aborted = catalog.planning.aborted_transactions(
        {key: (extents[0].base_offset, extents[-1].last_offset + 1) for key, (_, extents) in found.items()},
        limit_each=max(MIN_ABORTED_OF_ONE, min(ABORTED_OF_ONE, ABORTED_OF_ALL // len(found))),
    )
    views = {key: _view(state, extents, aborted[key]) for key, (state, extents) in found.items()}
    ends = [extent for view in views.values() for extent in _before_gaps(view)]
    counts = dict(zip(map(_key, ends), catalog.planning.controls_after(ends, CONTROLS_AT_ONCE), strict=True))
    return {
        key: replace(
            view,
            extents=tuple(
                extent._replace(controls_after=removable_controls(view, extent, count))
                if (count := counts.get(_key(extent), 0))
                else extent
                for extent in view.extents
            ),
        )
        for key, view in views.items()
    }


def _key(extent: Extent) -> tuple[int, int, int]:
    return extent.topic_id.int, extent.partition, extent.base_offset


def _view(state: PartitionState, extents: Sequence[Extent], page: AbortedPage) -> TransactionView:
    return TransactionView(
        state=replace(state, last_stable_offset=min(state.last_stable_offset, page.known_until)),
        extents=tuple(extents),
        aborted=page.transactions,
        records_from=page.records_from,
    )


def _before_gaps(view: TransactionView) -> list[Extent]:
    """Return the stable extents that may have control batches after them."""
    end = view.state.last_stable_offset
    last = view.extents[-1:]
    gaps = [one for one, other in pairwise(view.extents) if one.last_offset + 1 != other.base_offset]
    return [extent for extent in (*gaps, *last) if extent.last_offset + 1 < end]


def removable_controls(view: TransactionView, extent: Extent, count: int) -> int:
    """Return how many of the `count` control batches after an extent a job may remove.

    They lie before the last stable offset. If the extent is in a compacted file, they end before the first
    one whose transaction has records: these are before the extent. If it is in an ingestion file, it depends
    on the whole range of the job (`closed_run`).
    """
    first = extent.last_offset + 1
    end = min(first + count, view.state.last_stable_offset)
    if extent.file_kind is FileKind.COMPACTED:
        end = min((offset for offset in view.records_from if first <= offset < end), default=end)
    return max(0, end - first)


def closed_run(view: PartitionView, run: Sequence[Extent]) -> tuple[Extent, ...]:
    """Return the extents up to the first control batch that must stay, because records are left before."""
    if not run or not view.records_from:
        return tuple(run)
    base = run[0].base_offset
    kept = [offset for offset, first in view.records_from.items() if first < base <= offset]
    if not kept:
        return tuple(run)
    end = min(kept)
    inside = [extent for extent in run if extent.base_offset < end]
    last = inside[-1]
    return (*inside[:-1], last._replace(controls_after=min(last.controls_after, end - last.last_offset - 1)))
