"""JSON encoding of job specifications, as the catalog stores them.

The object has a `version`. Topics are listed once and referred to by index. Extents and partitions are arrays
in the order of `Extent`, up to `committed_ms`, and of `_PARTITION`, because a job may have tens of thousands
of them. Later additions are optional fields: older readers ignore them, and newer readers have defaults. A
reader rejects newer versions. A job has the lowest version whose readers run it right:

| version | adds |
|---|---|
| 1 | |
| 2 | the aborted transactions and the control batches that a job removes |
| 3 | files that a job claims as a whole |
"""

from __future__ import annotations

import base64
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson

from catalog.errors import JobVersionError
from catalog.model import (
    AbortedTransaction,
    Extent,
    FileFormat,
    FileKind,
    JobInput,
    JobPartition,
    JobSpec,
)
from core.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PLAIN_VERSION: Final = 1
_TRANSACTIONS_VERSION: Final = 2
_FILES_VERSION: Final = 3
SPEC_VERSION: Final = _FILES_VERSION
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
_partition_values: Callable[[JobPartition], tuple[Any, ...]] = attrgetter(*_PARTITION)


def write_spec(spec: JobSpec) -> bytes:
    """Encode a specification."""
    # The hash of a UUID is a Python function, so the keys are plain integers.
    topics = {each.topic_id.int: each.topic_id for each in spec.partitions}
    topics |= {extent.topic_id.int: extent.topic_id for file in spec.inputs for extent in file.extents}
    topic_indexes = {key: index for index, key in enumerate(sorted(topics))}
    has_transactions = _has_transactions(spec)
    return orjson.dumps(
        {
            "version": version_of(spec),
            "job_id": spec.job_id,
            "created_ms": spec.created_ms,
            "now_ms": spec.now_ms,
            "hash_seed": base64.b64encode(spec.hash_seed).decode(),
            "table_bytes": spec.table_bytes,
            "reason": spec.reason,
            "output_bytes": spec.output_bytes,
            "merge_batches": spec.merge_batches,
            "exact": spec.exact,
            "kernel_digest": spec.kernel_digest,
            "topics": [topics[key] for key in topic_indexes],
            "inputs": [_write_input(file, topic_indexes) for file in spec.inputs],
            "partitions": [
                [topic_indexes[partition.topic_id.int], *_partition_values(partition)]
                for partition in spec.partitions
            ],
            "max_message_bytes": [partition.max_message_bytes for partition in spec.partitions],
            "expires_after_ms": [partition.expires_after_ms for partition in spec.partitions],
            **(_write_transactions(spec) if has_transactions else {}),
        }
    )


def version_of(spec: JobSpec) -> int:
    """Return the lowest version whose readers run the job right."""
    if any(file.is_whole for file in spec.inputs):
        return _FILES_VERSION
    return _TRANSACTIONS_VERSION if _has_transactions(spec) else _PLAIN_VERSION


def _has_transactions(spec: JobSpec) -> bool:
    return any(partition.aborted or partition.controls for partition in spec.partitions)


def _write_transactions(spec: JobSpec) -> dict[str, Any]:
    return {
        "aborted": [[tuple(each) for each in partition.aborted] for partition in spec.partitions],
        "controls": [partition.controls for partition in spec.partitions],
    }


def _write_input(file: JobInput, topic_indexes: dict[int, int]) -> dict[str, Any]:
    return {
        "file_id": file.file_id,
        "object_name": file.object_name,
        "size": file.size,
        "is_whole": file.is_whole,
        "kind": file.extents[0].file_kind.value if file.extents else FileKind.INGESTION.value,
        "format": file.extents[0].format if file.extents else FileFormat(),
        "extents": [(topic_indexes[extent.topic_id.int], *extent[1:15]) for extent in file.extents],
    }


def read_spec(data: bytes | str) -> JobSpec:
    """Decode a specification.

    Raise JobVersionError for a newer version, CorruptDataError if it is malformed.
    """
    try:
        return _read_spec(orjson.loads(data))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise CorruptDataError(f"a job's specification cannot be read: {error!r}") from error


def _read_spec(stored: dict[str, Any]) -> JobSpec:
    if not _PLAIN_VERSION <= stored["version"] <= SPEC_VERSION:
        raise JobVersionError(
            f"job {stored['job_id']} has a specification of version {stored['version']}, but this process"
            f" reads versions up to {SPEC_VERSION}",
            remedy="deploy the same version of Siltstone to all planners, drivers and workers",
        )
    topics = [UUID(topic) for topic in stored["topics"]]
    partitions = stored["partitions"]
    missing = [None] * len(partitions)
    none: list[tuple[int, ...]] = [()] * len(partitions)
    return JobSpec(
        job_id=UUID(stored["job_id"]),
        created_ms=stored["created_ms"],
        now_ms=stored["now_ms"],
        hash_seed=base64.b64decode(stored["hash_seed"]),
        table_bytes=stored["table_bytes"],
        reason=stored["reason"],
        inputs=tuple(_read_input(file, topics) for file in stored["inputs"]),
        partitions=tuple(
            JobPartition(
                topic_id=topics[topic_index],
                max_message_bytes=max_message_bytes,
                expires_after_ms=expires_after_ms,
                aborted=tuple(AbortedTransaction(*each) for each in aborted),
                controls=tuple((first, last) for first, last in controls),
                **dict(zip(_PARTITION, values, strict=True)),
            )
            for (topic_index, *values), max_message_bytes, expires_after_ms, aborted, controls in zip(
                partitions,
                stored.get("max_message_bytes", missing),
                stored.get("expires_after_ms", missing),
                stored.get("aborted", none),
                stored.get("controls", none),
                strict=True,
            )
        ),
        # The first planners wrote neither these fields nor the two limits above.
        output_bytes=stored.get("output_bytes"),
        merge_batches=stored.get("merge_batches", True),
        exact=stored.get("exact", False),
        kernel_digest=stored.get("kernel_digest", ""),
    )


def _read_input(file: dict[str, Any], topics: Sequence[UUID]) -> JobInput:
    file_id, object_name, kind = UUID(file["file_id"]), file["object_name"], FileKind(file["kind"])
    file_format = FileFormat(**file.get("format", {}))  # the first planners wrote none
    of_file = file_id, object_name, kind, file_format, None, None, 0
    return JobInput(
        file_id=file_id,
        object_name=object_name,
        size=file["size"],
        is_whole=file.get("is_whole", False),
        extents=tuple(
            Extent._make((topics[topic_index], *values, *of_file)) for topic_index, *values in file["extents"]
        ),
    )
