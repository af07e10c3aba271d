"""JSON encoding and validation of job specifications."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.errors import JobVersionError
from catalog.jobs import json_format
from catalog.jobs.json_format import read_spec, write_spec
from catalog.jobs.validation import check_spec, coverage_problem
from catalog.model import AbortedTransaction, Extent, FileFormat, FileKind, JobInput, JobPartition, JobSpec
from core.errors import CorruptDataError, InvalidInputError

_OFFSETS = st.integers(0, 2**62)


@st.composite
def _inputs(draw: st.DrawFn) -> JobInput:
    file_id: UUID = draw(st.uuids())
    name = draw(st.text(max_size=10))
    kind = draw(st.sampled_from(FileKind))
    extents = draw(
        st.lists(
            st.builds(
                Extent,
                topic_id=st.uuids(),
                partition=st.integers(0, 2**31 - 1),
                base_offset=_OFFSETS,
                last_offset=_OFFSETS,
                record_count=_OFFSETS,
                min_timestamp=st.integers(-1, 2**62),
                max_timestamp=st.integers(-1, 2**62),
                file_id=st.just(file_id),
                object_name=st.just(name),
                file_kind=st.just(kind),
                position=_OFFSETS,
                length=_OFFSETS,
                index_position=_OFFSETS,
                index_length=_OFFSETS,
                offset_shift=st.integers(-(2**62), 2**62),
                leader_epoch=st.integers(0, 2**31 - 1),
                unique_keys=st.booleans(),
                committed_ms=_OFFSETS,
                claimed_by=st.none(),
            ),
            min_size=1,
            max_size=4,
        )
    )
    return JobInput(
        file_id=file_id,
        object_name=name,
        size=draw(_OFFSETS),
        extents=tuple(extents),
        is_whole=draw(st.booleans()),
    )


_SPECS = st.builds(
    JobSpec,
    job_id=st.uuids(),
    created_ms=_OFFSETS,
    now_ms=_OFFSETS,
    hash_seed=st.binary(min_size=16, max_size=16),
    table_bytes=_OFFSETS,
    reason=st.text(max_size=20),
    inputs=st.lists(_inputs(), max_size=3).map(tuple),
    partitions=st.lists(
        st.builds(
            JobPartition,
            topic_id=st.uuids(),
            partition=st.integers(0, 2**31 - 1),
            topic_name=st.text(max_size=10),
            cleanup_policy=st.sampled_from(["compact", "delete", "compact,delete"]),
            compression_type=st.sampled_from(["producer", "zstd"]),
            deduplicate=st.booleans(),
            reaches_log_start=st.booleans(),
            base_offset=_OFFSETS,
            upper_offset=_OFFSETS,
            delete_retention_ms=_OFFSETS,
            max_message_bytes=st.none() | st.integers(0, 2**31 - 1),
            expires_after_ms=st.none() | st.integers(0, 2**63 - 1),
            aborted=st.lists(st.builds(AbortedTransaction, _OFFSETS, _OFFSETS, _OFFSETS), max_size=2).map(
                tuple
            ),
            controls=st.lists(st.tuples(_OFFSETS, _OFFSETS), max_size=2).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    merge_batches=st.booleans(),
    exact=st.booleans(),
)


OPTIONAL = frozenset(
    {
        "output_bytes",
        "merge_batches",
        "max_message_bytes",
        "expires_after_ms",
        "exact",
        "kernel_digest",
        "aborted",
        "controls",
    }
)


@given(_SPECS)
def test_a_specification_survives_a_round_trip(spec: JobSpec) -> None:
    assert read_spec(write_spec(spec)) == spec


def test_stored_extents_have_a_fixed_order() -> None:
    """Jobs of earlier releases stay readable, and earlier releases read new jobs."""
    topic_id, file_id = UUID(int=1), UUID(int=3)
    extent = Extent(
        topic_id=topic_id,
        partition=2,
        base_offset=100,
        last_offset=109,
        record_count=8,
        min_timestamp=11,
        max_timestamp=12,
        position=64,
        length=500,
        index_position=564,
        index_length=20,
        offset_shift=90,
        leader_epoch=5,
        unique_keys=True,
        committed_ms=13,
        file_id=file_id,
        object_name="a",
        file_kind=FileKind.INGESTION,
        format=FileFormat(kernel_digest="k"),
    )
    stored = orjson.loads(write_spec(_spec_of(extent)))
    assert stored["topics"] == [str(topic_id)]
    (file,) = stored["inputs"]
    assert file["extents"] == [[0, 2, 100, 109, 8, 11, 12, 64, 500, 564, 20, 90, 5, True, 13]]
    assert stored["partitions"] == [[0, 2, "t", "compact", "producer", True, False, 100, 110, 7]]
    assert read_spec(orjson.dumps(stored)).inputs[0].extents == (extent,)


def _spec_of(extent: Extent) -> JobSpec:
    partition = JobPartition(
        topic_id=extent.topic_id,
        partition=extent.partition,
        topic_name="t",
        cleanup_policy="compact",
        compression_type="producer",
        deduplicate=True,
        reaches_log_start=False,
        base_offset=extent.base_offset,
        upper_offset=extent.last_offset + 1,
        delete_retention_ms=7,
    )
    file = JobInput(file_id=extent.file_id, object_name=extent.object_name, size=600, extents=(extent,))
    return JobSpec(
        job_id=UUID(int=4),
        created_ms=1,
        now_ms=2,
        hash_seed=bytes(16),
        table_bytes=3,
        reason="r",
        inputs=(file,),
        partitions=(partition,),
    )


@given(_SPECS)
def test_fields_that_earlier_planners_did_not_write_have_defaults(spec: JobSpec) -> None:
    stored = orjson.loads(write_spec(spec))
    for field in OPTIONAL:
        stored.pop(field, None)
    partitions = tuple(
        replace(each, max_message_bytes=None, expires_after_ms=None, aborted=(), controls=())
        for each in spec.partitions
    )
    assert read_spec(orjson.dumps(stored)) == replace(
        spec, output_bytes=None, merge_batches=True, exact=False, kernel_digest="", partitions=partitions
    )


@given(_SPECS)
def test_the_hash_seed_is_not_in_the_repr(spec: JobSpec) -> None:
    assert repr(spec.hash_seed) not in repr(spec)


@given(_SPECS, st.data())
def test_a_malformed_specification_is_a_corrupt_data_error(spec: JobSpec, data: st.DataObject) -> None:
    stored = orjson.loads(write_spec(spec))
    del stored[data.draw(st.sampled_from(sorted(stored.keys() - OPTIONAL)))]
    for malformed in (
        orjson.dumps(stored),
        b"[]",
        b"{",
    ):
        with pytest.raises(CorruptDataError):
            read_spec(malformed)


@given(_SPECS)
def test_a_job_must_cover_its_ranges(spec: JobSpec) -> None:
    """Random specifications do not, and the error names the job."""
    with pytest.raises(InvalidInputError, match=str(spec.job_id)):
        check_spec(spec)


def test_no_extents_cover_only_an_empty_range() -> None:
    assert coverage_problem([], 5, 5) == ""
    assert coverage_problem([], 5, 6) == "there are no extents"


@given(_SPECS)
def test_a_specification_of_another_version_is_not_corrupt(spec: JobSpec) -> None:
    """Another process may be able to read it."""
    stored = orjson.loads(write_spec(spec))

    with pytest.raises(JobVersionError, match=f"job {spec.job_id} has a specification of version 4"):
        read_spec(orjson.dumps({**stored, "version": 4}))


@given(_SPECS)
def test_only_a_job_with_new_features_needs_a_newer_version(spec: JobSpec) -> None:
    has_transactions = any(each.aborted or each.controls for each in spec.partitions)
    expected = 3 if any(file.is_whole for file in spec.inputs) else 2 if has_transactions else 1
    assert orjson.loads(write_spec(spec))["version"] == expected


def test_a_reader_of_the_older_version_refuses_a_job_with_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partition = JobPartition(
        topic_id=UUID(int=1),
        partition=0,
        topic_name="t",
        cleanup_policy="compact",
        compression_type="producer",
        deduplicate=True,
        reaches_log_start=True,
        base_offset=0,
        upper_offset=0,
        delete_retention_ms=0,
    )
    plain = JobSpec(
        job_id=UUID(int=2),
        created_ms=0,
        now_ms=0,
        hash_seed=bytes(16),
        table_bytes=0,
        reason="",
        inputs=(),
        partitions=(partition,),
    )
    written = write_spec(replace(plain, partitions=(replace(partition, controls=((3, 3),)),)))
    monkeypatch.setattr(json_format, "SPEC_VERSION", 1)
    assert read_spec(write_spec(plain)) == plain
    with pytest.raises(JobVersionError, match="reads versions up to 1"):
        read_spec(written)
