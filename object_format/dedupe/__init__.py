"""Which records of a compacted partition stay (pass 1), and writing them (pass 2)."""

from __future__ import annotations

from object_format.dedupe.ahead import ThinnedAhead
from object_format.dedupe.answer import Survivors
from object_format.dedupe.filter import FilteredBatches, filter_batches
from object_format.dedupe.key_table import KeyTable
from object_format.dedupe.rewriting import Rewriting
from object_format.dedupe.survivors import SurvivorFinder

__all__ = [
    "FilteredBatches",
    "KeyTable",
    "Rewriting",
    "SurvivorFinder",
    "Survivors",
    "ThinnedAhead",
    "filter_batches",
]
