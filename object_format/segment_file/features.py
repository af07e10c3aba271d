"""Decides whether this version can read a segment file.

A file states its format version and its required features twice: in the FILE_HEADER, where each feature is a
bit, and in the catalog, where each has a name. A reader of a byte range sees no header, so it asks
`check_format` with the catalog's values before it reads. A feature that is not in `FEATURES` is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from core.errors import FatalError
from object_format.segment_file.layout import BLOCK_HEADER, MAGIC, VERSION, BlockType

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Feature(NamedTuple):
    """Required feature: its bit in the FILE_HEADER, its name, and the first Siltstone that reads it."""

    bit: int
    name: str
    since: str


FEATURES: Final[tuple[Feature, ...]] = ()
"""Features that this version reads. Bits and names are never reused. There is none yet."""


class UnsupportedFormatError(FatalError):
    """A file is sound, but needs a newer Siltstone. No byte of its data may be interpreted."""


def format_fault(version: int, required_features: str) -> str | None:
    """Return why this version cannot read a file of that format; None if it can.

    `required_features` are the catalog's, as `name@since` separated by commas.
    """
    if version != VERSION:
        return f"has format version {version}, and this Siltstone reads version {VERSION}"
    if not required_features:
        return None
    known = {feature.name for feature in FEATURES}
    required = [each.partition("@") for each in required_features.split(",")]
    needs = [f"the feature {name} of Siltstone {since}" for name, _, since in required if name not in known]
    return f"requires {' and '.join(needs)}" if needs else None


def check_format(file: str, version: int, required_features: str) -> None:
    """Raise UnsupportedFormatError if this version cannot read the file (see `format_fault`)."""
    fault = format_fault(version, required_features)
    if fault is not None:
        raise _unsupported(file, fault)


def stated_version(head: Buffer) -> int | None:
    """Return the format version in a file's first bytes, unverified; None if these are not a segment file's.

    Another version may have another header, so this version cannot verify it.
    """
    view = memoryview(head)
    block = view[len(MAGIC) :]
    end = BLOCK_HEADER.size + 2
    if view[: len(MAGIC)] != MAGIC or len(block) < end or block[0] != BlockType.FILE_HEADER:
        return None
    return int.from_bytes(block[BLOCK_HEADER.size : end], "big")


def features_for_catalog(bits: int) -> str:
    """Return the catalog's value for the required features of a FILE_HEADER, which are known."""
    return ",".join(f"{each.name}@{each.since}" for each in FEATURES if bits >> each.bit & 1)


def check_header_features(file: str, bits: int) -> None:
    """Raise UnsupportedFormatError for unknown required features in a FILE_HEADER."""
    unknown = bits & ~sum(1 << feature.bit for feature in FEATURES)
    if unknown:
        numbers = [str(bit) for bit in range(unknown.bit_length()) if unknown >> bit & 1]
        raise _unsupported(file, f"requires the unknown features of bits {', '.join(numbers)}")


def _unsupported(file: str, fault: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"segment file {file} {fault}", remedy="upgrade Siltstone on this machine, then repeat the call"
    )
