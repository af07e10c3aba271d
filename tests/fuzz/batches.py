"""Fuzz target: arbitrary bytes as batches, for decoding, validation and changes in place."""

from __future__ import annotations

from object_format.errors import MalformedBatchError
from object_format.record_batch.headers import (
    assign_offsets,
    iter_headers,
    patch_offsets,
    set_append_time,
    trim_batches,
)
from object_format.record_batch.records import Record, decode_batches
from object_format.record_batch.validation import validate_batches
from tests.fuzz.harness import fuzz
from tests.fuzz.samples import logs, with_records


def decoded(data: bytes, *, verify: bool) -> list[Record] | None:
    """Return all records; None if the bytes are rejected."""
    try:
        return [
            record
            for columns in decode_batches(data, verify=verify, control=True)
            for record in columns.records()
        ]
    except MalformedBatchError as error:
        assert 0 <= error.position <= len(data)
        assert error.fault
        return None


def one_input(data: bytes) -> None:
    """Each reader returns a result or raises the expected error, and the readers agree."""
    for batches in (data, with_records(data)):
        found = decoded(batches, verify=False)
        assert decoded(batches, verify=True) in (None, found)
        validated = validate_batches(batches, require_keys=True)
        if found is None:
            assert validated.problems
        for change in (patch_offsets, assign_offsets, set_append_time):
            try:
                change(bytearray(batches), 1, 0)
            except MalformedBatchError as error:
                assert error.fault
        try:
            headers = list(iter_headers(batches))
            assert len(trim_batches(batches, first_offset=50, max_bytes=200)) <= len(batches)
        except MalformedBatchError as error:
            assert error.fault
        else:
            assert sum(header.size for _position, header in headers) == len(batches)


if __name__ == "__main__":
    fuzz(one_input, [b"", *logs()])
