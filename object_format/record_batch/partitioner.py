"""Assigns keys to partitions like Kafka's default partitioner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from core.errors import InvalidInputError
from object_format.buffers import readable
from object_format.kernels.hashing.murmur2 import murmur2_of, partitions_of

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Buffer


def murmur2(key: Buffer) -> int:
    """Return Kafka's murmur2 hash of `key` as a signed 32-bit integer, as in Java."""
    data = readable(key)
    value = int(murmur2_of(data, 0, data.size))
    return value - ((value & 0x80000000) << 1)


def partition_for_keys(
    keys: Buffer, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], partition_count: int
) -> npt.NDArray[np.int32]:
    """Return the partitions of many keys in one buffer; -1 for a null key (length below 0).

    The rule is `toPositive(murmur2(key)) % partition_count`, as in Kafka's BuiltInPartitioner.
    """
    if partition_count < 1:
        raise InvalidInputError(f"a topic has at least one partition, not {partition_count}")
    if len(starts) != len(lengths):
        raise InvalidInputError(f"there are {len(starts)} starts of keys, but {len(lengths)} lengths")
    partitions = np.empty(len(starts), np.int32)
    partitions_of(
        readable(keys),
        np.ascontiguousarray(starts, np.int64),
        np.ascontiguousarray(lengths, np.int32),
        partition_count,
        partitions,
    )
    return partitions
