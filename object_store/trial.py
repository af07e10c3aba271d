"""Trial of a store: the operations that Siltstone uses, each compared with the behaviour that it relies on.

A server may accept a request and do something else, such as ignore a condition, so that results are compared.
The objects of a trial have names of a compaction job that no catalog knows, and are deleted at its end.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from core.errors import SiltstoneError
from object_store.accounting import Purpose
from object_store.errors import ObjectExistsError, ObjectNotFoundError
from object_store.names import compacted_name, compacted_prefix

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.ids import Ids
    from object_store.interface import ObjectStore

_SMALL: Final = bytes(range(100))
_OTHER: Final = b"an object that must not replace another one"
#: More than one part of an upload to S3.
_LARGE: Final = bytes(range(256)) * ((8 << 20) // 256) + _SMALL
_UNLISTED_UPLOADS: Final = (
    "the server did not list an unfinished upload, so Siltstone cannot remove those of processes that died; "
    "let the server abort uploads that are a week old (MinIO lists none, and aborts them after a day)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """Result of one operation; `permissions` are the actions of S3 that it needs. No problem: it works.

    A `limitation` is what the server does not do, and Siltstone can do without it.
    """

    operation: str
    permissions: tuple[str, ...]
    problem: str | None = None
    limitation: str | None = None


@dataclass(frozen=True, slots=True)
class _Limitation:
    text: str


@dataclass(frozen=True, slots=True)
class _Operation:
    name: str
    permissions: tuple[str, ...]
    run: Callable[[], str | _Limitation | None]


def try_store(store: ObjectStore, ids: Ids, *, is_s3: bool) -> list[TrialResult]:
    """Try each operation and return the results. `is_s3` adds those that only S3 has."""
    trial = _Trial(store, ids)
    try:
        return [_result_of(each) for each in trial.operations(is_s3=is_s3)]
    finally:
        trial.clean_up()


def _result_of(operation: _Operation) -> TrialResult:
    result = TrialResult(operation=operation.name, permissions=operation.permissions)
    try:
        found = operation.run()
    except SiltstoneError as error:
        found = str(error)
    if isinstance(found, _Limitation):
        return replace(result, limitation=found.text)
    return replace(result, problem=found)


class _Trial:
    def __init__(self, store: ObjectStore, ids: Ids) -> None:
        job_id, attempt_id = ids.new_uuid(), ids.new_uuid()
        self._store = store
        self._prefix = compacted_prefix(job_id)
        self._names = [compacted_name(job_id, attempt_id, ids.new_uuid()) for _ in range(5)]
        self._written, self._created, self._large, self._unfinished, self._missing = self._names

    def operations(self, *, is_s3: bool) -> list[_Operation]:
        """Return the operations in the order in which they depend on each other."""
        found = [
            _Operation("list objects", ("s3:ListBucket",), self._list),
            # S3 says that an object is missing only to callers that may list the bucket.
            _Operation("find an object missing", ("s3:GetObject", "s3:ListBucket"), self._miss),
            _Operation(
                "write an object, and list it at once", ("s3:PutObject", "s3:ListBucket"), self._write
            ),
            _Operation("read ranges", ("s3:GetObject",), self._read),
            _Operation("write only if the name is free", ("s3:PutObject", "s3:GetObject"), self._create),
            _Operation("write a large object in parts", ("s3:PutObject", "s3:GetObject"), self._upload),
            _Operation("delete objects", ("s3:DeleteObject", "s3:ListBucket"), self._delete),
        ]
        if is_s3:
            aborting = ("s3:PutObject", "s3:ListBucketMultipartUploads", "s3:AbortMultipartUpload")
            found.append(_Operation("find and abort an unfinished upload", aborting, self._sweep))
        return found

    def clean_up(self) -> None:
        """Delete what the trial has left after a failure, as far as this is possible."""
        with suppress(SiltstoneError):
            self._store.delete(self._names, purpose=Purpose.CHECK)

    def _listed(self) -> list[str]:
        return [each.name for each in self._store.list(self._prefix, purpose=Purpose.CHECK)]

    def _list(self) -> str | None:
        found = self._listed()
        return f"the list has {found[0]!r}, which does not exist" if found else None

    def _miss(self) -> str | None:
        with suppress(ObjectNotFoundError):
            self._store.read_range(self._missing, 0, 1, purpose=Purpose.CHECK)
            return f"{self._missing!r} was read, but does not exist"
        return None

    def _write(self) -> str | None:
        self._store.put(self._written, [_OTHER], purpose=Purpose.CHECK)
        self._store.put(self._written, [_SMALL], purpose=Purpose.CHECK)
        found = self._listed()
        return None if found == [self._written] else f"the list has {found} instead of the object"

    def _read(self) -> str | None:
        part = self._store.read_range(self._written, 10, 20, purpose=Purpose.CHECK)
        tail, size = self._store.read_tail(self._written, 7, purpose=Purpose.CHECK)
        if part == _SMALL[10:30] and tail == _SMALL[-7:] and size == len(_SMALL):
            return None
        return "a range has other bytes than were written"

    def _create(self) -> str | None:
        self._store.create(self._created, [_SMALL], purpose=Purpose.CHECK)
        with suppress(ObjectExistsError):
            self._store.create(self._created, [_OTHER], purpose=Purpose.CHECK)
            return "the server ignored If-None-Match: * and replaced an object"
        kept = self._store.read_range(self._created, 0, len(_SMALL), purpose=Purpose.CHECK)
        return None if kept == _SMALL else "a refused write changed the object"

    def _upload(self) -> str | None:
        upload = self._store.start_upload(self._large, purpose=Purpose.CHECK)
        try:
            upload.write(_LARGE)
            upload.complete()
        finally:
            upload.abort()
        position = len(_LARGE) - 2 * len(_SMALL)  # before the border of the parts
        tail = self._store.read_range(self._large, position, 2 * len(_SMALL), purpose=Purpose.CHECK)
        return None if tail == _LARGE[position:] else "the parts were joined to other bytes"

    def _delete(self) -> str | None:
        self._store.delete(self._names, purpose=Purpose.CHECK)
        found = self._listed()
        return f"{found[0]!r} is listed although it was deleted" if found else None

    def _sweep(self) -> str | _Limitation | None:
        upload = self._store.start_upload(self._unfinished, purpose=Purpose.CHECK)
        try:
            upload.write(_LARGE)
            swept, left = self._abort_unfinished(), self._abort_unfinished()
        finally:
            upload.abort()
        if not swept and not left:
            return _Limitation(_UNLISTED_UPLOADS)
        if swept != 1:
            return f"the list of unfinished uploads has {swept} of 1, and then {left}"
        return "an aborted upload is still listed" if left else None

    def _abort_unfinished(self) -> int:
        return self._store.sweep_unfinished(
            0, purpose=Purpose.CHECK, may_abort=lambda name, _: name == self._unfinished
        )
