"""Type names for the parameters of kernels. Numba infers machine types; to mypy, all are the same."""

from __future__ import annotations

from typing import Any, TypeAlias

ByteArray: TypeAlias = Any
"""uint8[:], contiguous; read-only unless the kernel writes to it."""

IntArray: TypeAlias = Any
"""Contiguous array of integers; the docstring states their width."""

Rows: TypeAlias = Any
"""Array of `layout.BATCH_ROW`."""

Integer: TypeAlias = Any
"""Integer of up to 64 bits."""

Integers: TypeAlias = Any
"""Tuple of integers."""
