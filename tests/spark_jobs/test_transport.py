from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from core.errors import CorruptDataError, RetryableError
from object_format.kernels.runtime.identity import KERNEL_DIGEST
from spark_jobs import transport
from spark_jobs.errors import KernelMismatchError
from spark_jobs.transport import pack_result, pack_spec, unpack_result, unpack_spec

I64 = st.integers(-(2**63), 2**63 - 1)
I32 = st.integers(0, 2**31 - 1)
TEXT = st.text(st.characters(codec="utf-8"))


@st.composite
def inputs(draw: st.DrawFn) -> JobInput:
    file_id, name = draw(st.uuids()), draw(TEXT)
    kind = draw(st.sampled_from(FileKind))
    extents = st.builds(
        Extent,
        topic_id=st.uuids(),
        partition=I32,
        base_offset=I64,
        last_offset=I64,
        record_count=I64,
        min_timestamp=I64,
        max_timestamp=I64,
        file_id=st.just(file_id),
        object_name=st.just(name),
        file_kind=st.just(kind),
        position=I64,
        length=I64,
        index_position=I64,
        index_length=I64,
        offset_shift=I64,
        leader_epoch=I32,
        unique_keys=st.booleans(),
        committed_ms=I64,
    )
    return JobInput(
        file_id=file_id,
        object_name=name,
        size=draw(I64),
        extents=tuple(draw(st.lists(extents, min_size=1, max_size=4))),
    )


SPECS = st.builds(
    JobSpec,
    job_id=st.uuids(),
    created_ms=I64,
    now_ms=I64,
    hash_seed=st.binary(min_size=16, max_size=16),
    table_bytes=I64,
    reason=TEXT,
    inputs=st.lists(inputs(), max_size=3).map(tuple),
    partitions=st.lists(
        st.builds(
            JobPartition,
            topic_id=st.uuids(),
            partition=I32,
            topic_name=TEXT,
            cleanup_policy=TEXT,
            compression_type=TEXT,
            deduplicate=st.booleans(),
            reaches_log_start=st.booleans(),
            base_offset=I64,
            upper_offset=I64,
            delete_retention_ms=I64,
        ),
        max_size=3,
    ).map(tuple),
)
RESULTS = st.builds(
    JobResult,
    job_id=st.uuids(),
    attempt_id=st.uuids(),
    files=st.lists(
        st.builds(
            OutputFile,
            file_id=st.uuids(),
            object_name=TEXT,
            size=I64,
            directory_length=I64,
            extents=st.lists(
                st.builds(
                    OutputExtent,
                    topic_id=st.uuids(),
                    partition=I32,
                    base_offset=I64,
                    last_offset=I64,
                    record_count=I64,
                    min_timestamp=I64,
                    max_timestamp=I64,
                    position=I64,
                    length=I64,
                    index_position=I64,
                    index_length=I64,
                    unique_keys=st.booleans(),
                ),
                max_size=3,
            ).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    counts=st.dictionaries(TEXT, I64, max_size=4),
)


@given(SPECS)
def test_unpack_spec_reverses_pack_spec(spec: JobSpec) -> None:
    assert unpack_spec(pack_spec(spec)) == replace(spec, kernel_digest=KERNEL_DIGEST)


@given(SPECS)
def test_a_worker_with_other_kernels_refuses_a_job(spec: JobSpec) -> None:
    """The refusal names both versions and says what to do; the job may succeed later."""
    other = "ab" * 32
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "KERNEL_DIGEST", other)
        packed = pack_spec(spec)

    with pytest.raises(KernelMismatchError) as refusal:
        unpack_spec(packed)

    assert isinstance(refusal.value, RetryableError)
    for part in (str(spec.job_id), other[:12], KERNEL_DIGEST[:12], "deploy the same version"):
        assert part in str(refusal.value)


@given(RESULTS)
def test_unpack_result_reverses_pack_result(result: JobResult) -> None:
    assert unpack_result(pack_result(result)) == result


@given(SPECS, st.data())
def test_a_damaged_spec_raises_corrupt_data_error(spec: JobSpec, data: st.DataObject) -> None:
    packed = pack_spec(spec)
    cut = data.draw(st.integers(0, len(packed) - 1))

    with pytest.raises(CorruptDataError):
        unpack_spec(packed[:cut])


@pytest.mark.parametrize("damaged", [b"", b"{}", b"[]", b"null", b'{"job_id": 3}'])
def test_a_damaged_result_raises_corrupt_data_error(damaged: bytes) -> None:
    with pytest.raises(CorruptDataError):
        unpack_result(damaged)
