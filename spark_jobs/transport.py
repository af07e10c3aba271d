"""How jobs travel to Spark tasks, and results back: compact bytes, nothing that executes when it is read.

A job of a thousand partitions over two hundred files has two hundred thousand extents: they travel as one
compressed matrix of integers, a few megabytes, where their JSON or pickle would take a hundred.
"""

from __future__ import annotations

from dataclasses import asdict
from struct import Struct
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import orjson
import zstandard

from bedrock.errors import CorruptDataError, InvalidInputError
from catalog.model import (
    Extent,
    FileKind,
    JobInput,
    JobPartition,
    JobResult,
    JobSpec,
    OutputExtent,
    OutputFile,
)

if TYPE_CHECKING:
    import numpy.typing as npt

_LENGTH = Struct(">I")
_LARGEST_SPEC = 1 << 31  # bytes before compression
_NUMBERS = (  # the columns of the matrix after topic and partition
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
    "committed_ms",
)
_COLUMNS = 2 + len(_NUMBERS) + 1


def pack_spec(spec: JobSpec) -> bytes:
    """The bytes of a job for its task."""
    topics = sorted({extent.topic_id for job_input in spec.inputs for extent in job_input.extents})
    topic_index = {topic_id: index for index, topic_id in enumerate(topics)}
    extents = [extent for job_input in spec.inputs for extent in _checked(job_input)]
    matrix = np.empty((_COLUMNS, len(extents)), ">i8")
    matrix[0] = [topic_index[extent.topic_id] for extent in extents]
    matrix[1] = [extent.partition for extent in extents]
    for row, name in enumerate(_NUMBERS, 2):
        matrix[row] = [getattr(extent, name) for extent in extents]
    matrix[-1] = [extent.unique_keys for extent in extents]
    head = orjson.dumps(
        {
            "job_id": spec.job_id,
            "created_ms": spec.created_ms,
            "now_ms": spec.now_ms,
            "hash_seed": spec.hash_seed.hex(),
            "table_bytes": spec.table_bytes,
            "reason": spec.reason,
            "partitions": [asdict(partition) for partition in spec.partitions],
            "topics": topics,
            "inputs": [
                {
                    "file_id": job_input.file_id,
                    "object_name": job_input.object_name,
                    "size": job_input.size,
                    "extents": len(job_input.extents),
                    "kind": job_input.extents[0].file_kind if job_input.extents else FileKind.INGESTION,
                }
                for job_input in spec.inputs
            ],
        }
    )
    return zstandard.compress(_LENGTH.pack(len(head)) + head + matrix.tobytes())


def unpack_spec(data: bytes) -> JobSpec:
    """The mirror of `pack_spec`; raises CorruptDataError when the bytes are not its."""
    try:
        plain = zstandard.decompress(data, max_output_size=_LARGEST_SPEC)
        (length,) = _LENGTH.unpack_from(plain)
        head = orjson.loads(plain[_LENGTH.size : _LENGTH.size + length])
        matrix = np.frombuffer(plain, ">i8", offset=_LENGTH.size + length).reshape(_COLUMNS, -1)
        return _spec_of(head, matrix)
    except (zstandard.ZstdError, ValueError, KeyError, TypeError, IndexError) as error:
        raise CorruptDataError(f"these bytes are no packed compaction job: {error}") from error


def pack_result(result: JobResult) -> bytes:
    """The bytes of a result, as JSON."""
    return orjson.dumps(
        {
            "job_id": result.job_id,
            "attempt_id": result.attempt_id,
            "files": [asdict(file) for file in result.files],
            "counts": result.counts,
        }
    )


def unpack_result(data: bytes) -> JobResult:
    """The mirror of `pack_result`; raises CorruptDataError when the bytes are not its."""
    try:
        plain = orjson.loads(data)
        return JobResult(
            job_id=UUID(plain["job_id"]),
            attempt_id=UUID(plain["attempt_id"]),
            files=tuple(_output_file_of(file) for file in plain["files"]),
            counts={name: int(count) for name, count in plain["counts"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(f"these bytes are no result of a compaction job: {error}") from error


def _checked(job_input: JobInput) -> tuple[Extent, ...]:
    """The extents of a file, which say the same of their file as the input does."""
    for extent in job_input.extents:
        if (extent.file_id, extent.object_name) != (job_input.file_id, job_input.object_name):
            raise InvalidInputError(
                f"input {job_input.object_name} lists an extent of {extent.object_name}",
                remedy="list each extent under its own file",
            )
    return job_input.extents


def _spec_of(head: dict[str, Any], matrix: npt.NDArray[np.int64]) -> JobSpec:
    topics = [UUID(topic) for topic in head["topics"]]
    rows = matrix.T.tolist()
    inputs = []
    taken = 0
    for each in head["inputs"]:
        file_id, name, kind = UUID(each["file_id"]), each["object_name"], FileKind(each["kind"])
        extents = tuple(
            Extent(
                topic_id=topics[row[0]],
                partition=row[1],
                file_id=file_id,
                object_name=name,
                file_kind=kind,
                unique_keys=bool(row[-1]),
                **dict(zip(_NUMBERS, row[2:-1], strict=True)),
            )
            for row in rows[taken : taken + each["extents"]]
        )
        taken += each["extents"]
        inputs.append(JobInput(file_id=file_id, object_name=name, size=each["size"], extents=extents))
    if taken != len(rows):
        raise ValueError(f"{len(rows)} extents, of which the inputs take {taken}")
    partitions = [
        JobPartition(**{**partition, "topic_id": UUID(partition["topic_id"])})
        for partition in head["partitions"]
    ]
    return JobSpec(
        job_id=UUID(head["job_id"]),
        created_ms=head["created_ms"],
        now_ms=head["now_ms"],
        hash_seed=bytes.fromhex(head["hash_seed"]),
        table_bytes=head["table_bytes"],
        reason=head["reason"],
        inputs=tuple(inputs),
        partitions=tuple(partitions),
    )


def _output_file_of(plain: dict[str, Any]) -> OutputFile:
    extents = tuple(
        OutputExtent(**{**extent, "topic_id": UUID(extent["topic_id"])}) for extent in plain["extents"]
    )
    return OutputFile(**{**plain, "file_id": UUID(plain["file_id"]), "extents": extents})
