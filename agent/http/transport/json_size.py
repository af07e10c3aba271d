"""The size of a JSON document before it is parsed: a parser makes an object of every item of it.

Small items take many times their length: 32 MiB of JSON can become gigabytes, and the parser of pydantic
holds the GIL until it has finished. The kernel does not hold it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from numba import njit

from object_format.buffers import readable
from object_format.kernels.runtime.intrinsics import borrowed

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, Integer

MAX_ITEMS: Final = 500_000
"""Bound on the items of a document: 0.2 s of parsing, and room for 100,000 records with key and value.

An item is a bracket that opens, or a comma, outside of strings."""

ITEM_BYTES: Final = 128
"""Memory of one item while the document is parsed and its records are encoded."""

_QUOTE, _BACKSLASH, _COMMA, _BRACKET, _BRACE = b'"\\,[{'


@njit(nogil=True, cache=True)
def _count(data: ByteArray) -> Integer:
    data = borrowed(data)
    count = 0
    in_string = False
    i = 0
    while i < data.size:
        byte = data[i]
        if in_string:
            if byte == _BACKSLASH:
                i += 1
            elif byte == _QUOTE:
                in_string = False
        elif byte == _QUOTE:
            in_string = True
        elif byte in (_COMMA, _BRACKET, _BRACE):
            count += 1
        i += 1
    return count


def count_items(document: bytes) -> int:
    """Return the number of items of a JSON document; of other bytes, of the part before the first error."""
    return int(_count(readable(document)))
