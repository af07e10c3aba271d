"""Check of every invariant on the current state of a whole catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.invariants import (
    Violation,
    bounds_never_go_back,
    bounds_ordered,
    claims_are_of_open_jobs,
    extents_cover_log,
    file_counts_agree,
    garbage_is_unneeded,
    record_counts_agree,
    sizes_add_up,
    transactions_agree,
)
from catalog.model import JobState

if TYPE_CHECKING:
    from catalog.model import PartitionId, PartitionState
    from catalog.open import Catalog

_EVERYTHING = 100_000


class InvariantChecker:
    """Checker that keeps the last bounds of partitions, to detect one that decreases."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._before: dict[PartitionId, PartitionState] = {}

    def violations(self) -> list[Violation]:
        """Return all violations."""
        catalog = self._catalog
        found: list[Violation] = []
        all_extents = []
        for size in catalog.planning.partition_sizes():
            key = size.partition_id
            extents = catalog.planning.extents_of(key, 0, _EVERYTHING)
            all_extents += extents
            found += bounds_ordered(size.state)
            found += bounds_never_go_back(self._before.get(key, size.state), size.state)
            found += extents_cover_log(size.state, extents)
            found += sizes_add_up(size, extents)
            for extent in extents:
                found += record_counts_agree(extent)
            self._before[key] = size.state
        for counts in catalog.repair.wrong_file_counts():
            found += file_counts_agree(counts)
        jobs = catalog.jobs.list([JobState.SUBMITTED, JobState.RUNNING], limit=_EVERYTHING)
        claims = {
            job.spec.job_id: {
                (extent.topic_id, extent.partition, extent.base_offset)
                for file in job.spec.inputs
                for extent in file.extents
            }
            for job in jobs
        }
        found += claims_are_of_open_jobs(all_extents, claims)
        read = {file.file_id for job in jobs for file in job.spec.inputs}
        dead = [file.file_id for file in catalog.garbage.dead_files(2**62, _EVERYTHING)]
        found += transactions_agree(catalog.transaction_lookups.contradictions())
        return found + garbage_is_unneeded(dead, all_extents, read)
