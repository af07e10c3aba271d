"""Serialization of jobs for Spark tasks, and of results for the driver; decoding never executes anything."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from catalog.jobs.json_format import read_spec, write_spec
from catalog.model import FileFormat, JobResult, OutputExtent, OutputFile
from core.cycle_collector import collector_paused
from core.errors import CorruptDataError
from object_format.codecs.codec import Codec, CompressedDataError, compress, decompress
from object_format.kernels.runtime.identity import KERNEL_DIGEST, short_digest
from spark_jobs.errors import KernelMismatchError

if TYPE_CHECKING:
    from catalog.model import JobSpec

_MAX_SPEC_BYTES = 1 << 30  # bytes before compression


def pack_spec(spec: JobSpec) -> bytes:
    """Return a job as bytes for tasks that have the kernels of this process.

    The bytes are the catalog's JSON, compressed about tenfold.
    """
    return compress(Codec.ZSTD, write_spec(replace(spec, kernel_digest=KERNEL_DIGEST)))


@collector_paused()
def unpack_spec(data: bytes) -> JobSpec:
    """Reverse `pack_spec`, with the digest of the kernels.

    Raise KernelMismatchError if the driver's kernels are not those of this process, JobVersionError if its
    version is another one, CorruptDataError for other bytes.
    """
    try:
        plain = bytes(decompress(Codec.ZSTD, data, limit=_MAX_SPEC_BYTES))
    except CompressedDataError as error:
        raise CorruptDataError(f"not a packed compaction job: {error}") from error
    spec = read_spec(plain)
    check_kernels(spec.kernel_digest, f"job {spec.job_id}: the driver")
    return spec


def check_kernels(digest: str, origin: str) -> None:
    """Raise KernelMismatchError unless `origin`, the sender of data, has the kernels of this process."""
    if digest != KERNEL_DIGEST:
        raise KernelMismatchError(
            f"{origin} has the kernels {short_digest(digest)}, but this worker has"
            f" {short_digest(KERNEL_DIGEST)}",
            remedy="deploy the same version of Siltstone to the driver and to all workers, then restart them",
        )


def pack_result(result: JobResult) -> bytes:
    """Return a result as JSON."""
    return orjson.dumps(result)


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
    file_format = FileFormat(**plain["format"])
    return OutputFile(
        **{**plain, "file_id": UUID(plain["file_id"]), "extents": extents, "format": file_format}
    )
