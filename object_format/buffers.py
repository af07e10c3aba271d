"""Converts byte buffers to the arrays that kernels take, without copying.

Numba compiles a kernel for each combination of argument types, and distinguishes read-only from writable
arrays. Arrays that a kernel only reads are therefore always passed as read-only, so that it is compiled once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from core.errors import InvalidInputError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Bytes = npt.NDArray[np.uint8]


def readable(data: Buffer) -> Bytes:
    """Return a read-only view of `data`."""
    return np.frombuffer(memoryview(data).toreadonly(), np.uint8)


def writable(data: Buffer) -> Bytes:
    """Return a writable view of `data`. Raises InvalidInputError if it is read-only."""
    array = np.frombuffer(memoryview(data), np.uint8)
    if not array.flags.writeable:
        raise InvalidInputError(
            "batches cannot be modified in a read-only buffer", remedy="copy them to a writable buffer"
        )
    return array
