"""Which records of a compacted partition stay (pass 1), and writing them (pass 2)."""

from __future__ import annotations

from object_format.dedupe.early_filter import ThinnedAhead
from object_format.dedupe.filter import filter_batches
from object_format.dedupe.key_table import KeyTable, keys_that_fit
from object_format.dedupe.rewrite import FilteredBatches, Rewriting, delete_horizon
from object_format.dedupe.survivor_finder import MAX_HELD_RECORDS, SurvivorFinder
from object_format.dedupe.survivors import Survivors

__all__ = [
    "MAX_HELD_RECORDS",
    "FilteredBatches",
    "KeyTable",
    "Rewriting",
    "SurvivorFinder",
    "Survivors",
    "ThinnedAhead",
    "delete_horizon",
    "filter_batches",
    "keys_that_fit",
]
