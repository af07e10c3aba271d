"""Decompression with little scratch memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from object_format.record_batch import decompression

if TYPE_CHECKING:
    import pytest


def limit_scratch_memory(patch: pytest.MonkeyPatch, size: int) -> None:
    """Limit scratch memory to `size` bytes until `patch` is undone, also that which the thread has already.

    The memory of a thread stays allocated. Memory of this size must not stay for later tests.
    """
    patch.setattr(decompression, "SCRATCH_BYTES", size)
    patch.setattr(decompression, "_local", decompression._Local())
    patch.setattr("object_format.dedupe.early_filter.SCRATCH_BYTES", size)
