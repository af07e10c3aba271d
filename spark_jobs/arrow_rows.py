"""Rows as Arrow record batches, built without pandas.

`pa.array` and everything that calls it import pandas if it is installed. That costs each Python worker more
than a small job, so columns are built from buffers.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence


def record_batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of at least one; a column is binary, boolean, or of integers, and no cell is None."""
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [_array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def _array(cells: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    if kind == pa.binary():
        ends = np.array(list(accumulate(map(len, cells), initial=0)), np.int32)
        return pa.Array.from_buffers(
            kind, len(cells), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(cells))]
        )
    if kind == pa.bool_():
        values = np.packbits(np.array(cells, np.bool_), bitorder="little")
    else:
        values = np.array(cells, np.int64 if kind == pa.int64() else np.int32)
    return pa.Array.from_buffers(kind, len(cells), [None, pa.py_buffer(values)])
