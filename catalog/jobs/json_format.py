"""A job's specification as JSON, the form in which the catalog keeps it.

`{"version": 1, …}`. Topics are named once and referred to by index; extents and partitions are arrays in the
order of the tables below, since a job may have tens of thousands of them. What came later stands beside these
under names of its own: earlier readers pass over it, and later ones do without. A reader refuses other
versions.
"""

from __future__ import annotations

import base64
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson

from catalog.model import Extent, FileKind, JobInput, JobPartition, JobSpec
from core.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_VERSION: Final = 1
_EXTENT: Final = (
    "partition",
    "base_offset",
    "last_offset",
    "record_count",
    "min_timestamp",
    "max_timestamp",
    "position",
    "length",
    "index_position",
    "index_length",
    "offset_shift",
    "leader_epoch",
    "unique_keys",
    "committed_ms",
)
_PARTITION: Final = (
    "partition",
    "topic_name",
    "cleanup_policy",
    "compression_type",
    "deduplicate",
    "reaches_log_start",
    "base_offset",
    "upper_offset",
    "delete_retention_ms",
)
_extent_values: Callable[[Extent], tuple[Any, ...]] = attrgetter(*_EXTENT)
_partition_values: Callable[[JobPartition], tuple[Any, ...]] = attrgetter(*_PARTITION)


def write_spec(spec: JobSpec) -> bytes:
    """The specification as JSON."""
    topics = sorted(
        {
            *(partition.topic_id for partition in spec.partitions),
            *(extent.topic_id for file in spec.inputs for extent in file.extents),
        }
    )
    numbers = {topic_id: number for number, topic_id in enumerate(topics)}
    return orjson.dumps(
        {
            "version": _VERSION,
            "job_id": spec.job_id,
            "created_ms": spec.created_ms,
            "now_ms": spec.now_ms,
            "hash_seed": base64.b64encode(spec.hash_seed).decode(),
            "table_bytes": spec.table_bytes,
            "reason": spec.reason,
            "output_bytes": spec.output_bytes,
            "merge_batches": spec.merge_batches,
            "exact": spec.exact,
            "topics": topics,
            "inputs": [_write_input(file, numbers) for file in spec.inputs],
            "partitions": [
                [numbers[partition.topic_id], *_partition_values(partition)] for partition in spec.partitions
            ],
            "max_message_bytes": [partition.max_message_bytes for partition in spec.partitions],
            "expires_after_ms": [partition.expires_after_ms for partition in spec.partitions],
        }
    )


def _write_input(file: JobInput, numbers: dict[UUID, int]) -> dict[str, Any]:
    return {
        "file_id": file.file_id,
        "object_name": file.object_name,
        "size": file.size,
        "kind": file.extents[0].file_kind.value if file.extents else FileKind.INGESTION.value,
        "extents": [[numbers[extent.topic_id], *_extent_values(extent)] for extent in file.extents],
    }


def read_spec(data: bytes | str) -> JobSpec:
    """The specification that was written; CorruptDataError for one that this version cannot read."""
    try:
        return _read_spec(orjson.loads(data))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise CorruptDataError(f"a job's specification cannot be read: {error!r}") from error


def _read_spec(kept: dict[str, Any]) -> JobSpec:
    if kept["version"] != _VERSION:
        raise CorruptDataError(
            f"job {kept['job_id']} has a specification of version {kept['version']}, known is {_VERSION}",
            remedy="run it with the Siltstone that planned it",
        )
    topics = [UUID(topic) for topic in kept["topics"]]
    partitions = kept["partitions"]
    nothing = [None] * len(partitions)
    return JobSpec(
        job_id=UUID(kept["job_id"]),
        created_ms=kept["created_ms"],
        now_ms=kept["now_ms"],
        hash_seed=base64.b64decode(kept["hash_seed"]),
        table_bytes=kept["table_bytes"],
        reason=kept["reason"],
        inputs=tuple(_read_input(file, topics) for file in kept["inputs"]),
        partitions=tuple(
            JobPartition(
                topic_id=topics[number],
                max_message_bytes=most,
                expires_after_ms=expires,
                **dict(zip(_PARTITION, values, strict=True)),
            )
            for (number, *values), most, expires in zip(
                partitions,
                kept.get("max_message_bytes", nothing),
                kept.get("expires_after_ms", nothing),
                strict=True,
            )
        ),
        # Of these, and of the limits above, the first planners knew nothing.
        output_bytes=kept.get("output_bytes"),
        merge_batches=kept.get("merge_batches", True),
        exact=kept.get("exact", False),
    )


def _read_input(file: dict[str, Any], topics: Sequence[UUID]) -> JobInput:
    file_id, object_name, kind = UUID(file["file_id"]), file["object_name"], FileKind(file["kind"])
    return JobInput(
        file_id=file_id,
        object_name=object_name,
        size=file["size"],
        extents=tuple(
            Extent(
                topic_id=topics[number],
                file_id=file_id,
                object_name=object_name,
                file_kind=kind,
                **dict(zip(_EXTENT, values, strict=True)),
            )
            for number, *values in file["extents"]
        ),
    )
