"""What a Python worker has loaded for good is no longer looked through for garbage.

PySpark's daemon collects garbage after every task (`pyspark.daemon`). In a worker with numba's kernels, with
pyarrow and so on this goes through all their objects, none of which will ever be garbage, and takes longer
than a task over a million records.
"""

from __future__ import annotations

import gc

_settled: set[str] = set()


def settle(kind: str) -> None:
    """To be called at the end of a task: what is there after the first of its kind stays for good.

    Later ones load nothing more. Garbage is collected before. What stays is freed when its last reference
    goes, as ever; only cycles of such objects are not, and there are no more of these with every task.
    """
    if kind not in _settled:
        _settled.add(kind)
        gc.collect()
        gc.freeze()
