"""Columns of numbers and identifiers as PostgreSQL arrays, in its binary form, built in bulk.

A commit sends a dozen arrays of up to a thousand elements each. psycopg adapts a list element by element;
these are put together by numpy in a few microseconds. The form: number of dimensions, a flag, the elements'
type, length and lower bound, then each element with its length before it, all big-endian
(src/backend/utils/adt/arrayfuncs.c, array_recv).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from psycopg.adapt import Dumper
from psycopg.pq import Format
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    import psycopg
    from numpy.typing import NDArray

_HEADER = struct.Struct(">iiIii")
_EMPTY = struct.Struct(">iiI")
_UUID_OID, _UUID_ARRAY_OID = 2950, 2951
_INTEGER_OID, _INTEGER_ARRAY_OID = 23, 1007
_BIGINT_OID, _BIGINT_ARRAY_OID = 20, 1016
_BYTEA_OID, _BYTEA_ARRAY_OID = 17, 1001


@dataclass(frozen=True, slots=True)
class Column:
    """One array parameter, already in PostgreSQL's binary form."""

    data: bytes


class UuidColumn(Column):
    """A uuid[] parameter."""


class IntegerColumn(Column):
    """An integer[] parameter."""


class BigintColumn(Column):
    """A bigint[] parameter."""


class ByteaColumn(Column):
    """A bytea[] parameter."""


def uuids(values: Iterable[UUID]) -> UuidColumn:
    """`values` as uuid[]."""
    return uuids_of(uuid_values(values))


def uuid_values(values: Iterable[UUID]) -> NDArray[np.void]:
    """`values` as an array of 16 bytes each, to pick from before `uuids_of`."""
    return np.frombuffer(b"".join([value.bytes for value in values]), dtype="V16")


def uuids_of(values: NDArray[np.void]) -> UuidColumn:
    """An array of 16 bytes each as uuid[]."""
    return UuidColumn(_binary(_UUID_OID, values))


def integers(values: Sequence[int] | NDArray[Any]) -> IntegerColumn:
    """`values` as integer[]."""
    return IntegerColumn(_binary(_INTEGER_OID, np.asarray(values, dtype=">i4")))


def bigints(values: Sequence[int] | NDArray[Any]) -> BigintColumn:
    """`values` as bigint[]."""
    return BigintColumn(_binary(_BIGINT_OID, np.asarray(values, dtype=">i8")))


def byteas(values: Sequence[bytes]) -> ByteaColumn:
    """`values` as bytea[]."""
    if not values:
        return ByteaColumn(_EMPTY.pack(0, 0, _BYTEA_OID))
    elements = b"".join([len(value).to_bytes(4, "big") + value for value in values])
    return ByteaColumn(_HEADER.pack(1, 0, _BYTEA_OID, len(values), 1) + elements)


def columns(rows: Iterable[tuple[int, ...]], width: int) -> NDArray[np.int64]:
    """Rows of `width` numbers as so many columns; twice as fast as numpy's own way from tuples."""
    return np.fromiter(chain.from_iterable(rows), dtype=np.int64).reshape(-1, width).T


def _binary(oid: int, values: NDArray[Any]) -> bytes:
    count = len(values)
    if count == 0:
        return _EMPTY.pack(0, 0, oid)
    elements = np.empty(count, dtype=[("length", ">i4"), ("value", values.dtype)])
    elements["length"] = values.dtype.itemsize
    elements["value"] = values
    return _HEADER.pack(1, 0, oid, count, 1) + elements.tobytes()


class _ColumnDumper(Dumper):
    format = Format.BINARY

    @override
    def dump(self, obj: Column) -> bytes:
        return obj.data


class _UuidColumnDumper(_ColumnDumper):
    oid = _UUID_ARRAY_OID


class _IntegerColumnDumper(_ColumnDumper):
    oid = _INTEGER_ARRAY_OID


class _BigintColumnDumper(_ColumnDumper):
    oid = _BIGINT_ARRAY_OID


class _ByteaColumnDumper(_ColumnDumper):
    oid = _BYTEA_ARRAY_OID


def register(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Teach a connection these types."""
    connection.adapters.register_dumper(UuidColumn, _UuidColumnDumper)
    connection.adapters.register_dumper(IntegerColumn, _IntegerColumnDumper)
    connection.adapters.register_dumper(BigintColumn, _BigintColumnDumper)
    connection.adapters.register_dumper(ByteaColumn, _ByteaColumnDumper)
