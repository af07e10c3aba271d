"""Names for what kernels take and give. numba infers the machine types; to mypy they are all the same."""

from __future__ import annotations

from typing import Any, TypeAlias

ByteArray: TypeAlias = Any
"""uint8[:], contiguous; read-only wherever a kernel does not write."""

IntArray: TypeAlias = Any
"""A contiguous array of integers, of the width that the docstring names."""

Rows: TypeAlias = Any
"""An array of `layout.BATCH_ROW`."""

Integer: TypeAlias = Any
"""A number that fits 64 bits."""

Integers: TypeAlias = Any
"""Several of them, as a tuple."""
