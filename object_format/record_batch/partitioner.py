"""Which partition a key belongs to, by the rule of Kafka's default partitioner."""

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
    """Kafka's murmur2 of `key`, as the signed 32-bit integer that Java has."""
    data = readable(key)
    value = int(murmur2_of(data, 0, data.size))
    return value - ((value & 0x80000000) << 1)


def partition_for_key(key: Buffer, partition_count: int) -> int:
    """The partition of one key."""
    _check_count(partition_count)
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def partition_for_keys(
    keys: Buffer, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], partition_count: int
) -> npt.NDArray[np.int32]:
    """The partitions of many keys that lie in one buffer; -1 where a length is below 0, for no key.

    `toPositive(murmur2(key)) % partition_count`, as in Kafka's BuiltInPartitioner.
    """
    _check_count(partition_count)
    if len(starts) != len(lengths):
        raise InvalidInputError(f"{len(starts)} starts of keys do not go with {len(lengths)} lengths")
    partitions = np.empty(len(starts), np.int32)
    partitions_of(
        readable(keys),
        np.ascontiguousarray(starts, np.int64),
        np.ascontiguousarray(lengths, np.int32),
        partition_count,
        partitions,
    )
    return partitions


def _check_count(partition_count: int) -> None:
    if partition_count < 1:
        raise InvalidInputError(f"a topic has at least one partition, not {partition_count}")
