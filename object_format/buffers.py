"""Bytes from anywhere as the arrays that kernels take, without a copy.

Kernels are compiled per type of their arguments, and numba tells read-only arrays from others: what a kernel
only reads is always handed over read-only, so that each is compiled once.
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
    """A read-only view of `data`."""
    return np.frombuffer(memoryview(data).toreadonly(), np.uint8)


def writable(data: Buffer) -> Bytes:
    """A view of `data` through which a kernel changes it in place."""
    array = np.frombuffer(memoryview(data), np.uint8)
    if not array.flags.writeable:
        raise InvalidInputError(
            "batches are to be changed in place, and their buffer is read-only", remedy="copy them first"
        )
    return array
