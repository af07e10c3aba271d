"""Exclude the objects that a Python worker keeps for its lifetime from garbage collection.

PySpark's daemon runs a garbage collection after every task (`pyspark.daemon`). In a worker with numba's
kernels and pyarrow it scans all their objects, although none of them ever becomes garbage. This takes longer
than a task over a million records.
"""

from __future__ import annotations

import gc

_frozen: set[str] = set()


def freeze_loaded_objects(kind: str) -> None:
    """Freeze all live objects after the first task of a kind; call it at the end of each task.

    Later tasks of the same kind load nothing more. Garbage is collected before freezing. A frozen object is
    still freed when its last reference goes; only cycles of frozen objects are never freed, and their number
    does not grow with tasks.
    """
    if kind not in _frozen:
        _frozen.add(kind)
        gc.collect()
        gc.freeze()
