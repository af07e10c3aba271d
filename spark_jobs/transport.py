"""Serialization of jobs for Spark tasks, and of results for the driver; decoding never executes anything."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from catalog.jobs.json_format import read_spec, write_spec
from catalog.model import JobResult, OutputExtent, OutputFile
from core.errors import CorruptDataError
from object_format.codecs.codec import Codec, CompressedDataError, compress, decompress

if TYPE_CHECKING:
    from catalog.model import JobSpec

_MAX_SPEC_BYTES = 1 << 30  # bytes before compression


def pack_spec(spec: JobSpec) -> bytes:
    """Return a job as bytes: the catalog's JSON, compressed about tenfold."""
    return compress(Codec.ZSTD, write_spec(spec))


def unpack_spec(data: bytes) -> JobSpec:
    """Reverse `pack_spec`. Raise CorruptDataError for other bytes."""
    try:
        plain = bytes(decompress(Codec.ZSTD, data, limit=_MAX_SPEC_BYTES))
    except CompressedDataError as error:
        raise CorruptDataError(f"not a packed compaction job: {error}") from error
    return read_spec(plain)


def pack_result(result: JobResult) -> bytes:
    """Return a result as JSON."""
    return orjson.dumps(asdict(result))


def unpack_result(data: bytes) -> JobResult:
    """Reverse `pack_result`. Raise CorruptDataError for other bytes."""
    try:
        plain = orjson.loads(data)
        return JobResult(
            job_id=UUID(plain["job_id"]),
            attempt_id=UUID(plain["attempt_id"]),
            files=tuple(_output_file_of(file) for file in plain["files"]),
            counts={name: int(count) for name, count in plain["counts"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(f"not a result of a compaction job: {error}") from error


def _output_file_of(plain: dict[str, Any]) -> OutputFile:
    extents = tuple(
        OutputExtent(**{**extent, "topic_id": UUID(extent["topic_id"])}) for extent in plain["extents"]
    )
    return OutputFile(**{**plain, "file_id": UUID(plain["file_id"]), "extents": extents})
