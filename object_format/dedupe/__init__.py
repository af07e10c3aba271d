"""Deduplication of compacted partitions: pass 1 finds the surviving records, pass 2 writes them."""

from __future__ import annotations

from object_format.dedupe.early_filter import EarlyFilter
from object_format.dedupe.filter import filter_batches, rewrite_batches
from object_format.dedupe.key_table import KeyTable, key_capacity
from object_format.dedupe.rewrite import FilteredBatches, RewriteOptions, delete_horizon
from object_format.dedupe.survivor_finder import MAX_RETAINED_RECORDS, SurvivorFinder
from object_format.dedupe.survivors import Survivors

__all__ = [
    "MAX_RETAINED_RECORDS",
    "EarlyFilter",
    "FilteredBatches",
    "KeyTable",
    "RewriteOptions",
    "SurvivorFinder",
    "Survivors",
    "delete_horizon",
    "filter_batches",
    "key_capacity",
    "rewrite_batches",
]
