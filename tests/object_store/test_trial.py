"""A trial accepts the stores that work, and names each operation that a store does not do."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from core.clock import ManualClock
from core.ids import SystemIds
from object_store.accounting import Purpose
from object_store.local.store import LocalStore
from object_store.open import open_store
from object_store.trial import try_store
from tests.fixtures.s3 import bucket_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from object_store.interface import Buffer, ObjectInfo, ObjectStore
    from object_store.open import StoreConfig
    from tests.fixtures.s3 import S3Server


def problems(store: ObjectStore, *, is_s3: bool = False) -> dict[str, str]:
    """Return the operations that do not work, with their problems and limitations."""
    results = try_store(store, SystemIds(ManualClock()), is_s3=is_s3)
    found = {each.operation: each.problem or each.limitation for each in results}
    return {operation: problem for operation, problem in found.items() if problem is not None}


def test_a_store_that_works_has_no_problem_and_keeps_nothing(
    store: ObjectStore, store_config: StoreConfig
) -> None:
    store.check()

    assert problems(store, is_s3=not store_config.is_local) == {}

    assert list(store.list("", purpose=Purpose.FSCK)) == []


def test_unfinished_uploads_of_others_stay(s3_server: S3Server, s3_config: StoreConfig) -> None:
    clock = ManualClock()
    bucket = bucket_of(s3_config)
    with (
        closing(s3_server.client()) as client,
        closing(open_store(s3_config, clock, SystemIds(clock))) as store,
    ):
        client.create_multipart_upload(Bucket=bucket, Key="some/prefix/video")

        assert problems(store, is_s3=True) == {}

        uploads = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
        assert [each["Key"] for each in uploads] == ["some/prefix/video"]


class ListsNoUploads(LocalStore):
    """Store of a server that lists an unfinished upload only if asked for its whole name, as MinIO does."""

    @override
    def sweep_unfinished(
        self, before_ms: int, *, purpose: Purpose, may_abort: Callable[[str, int], bool] | None = None
    ) -> int:
        del before_ms, purpose, may_abort
        return 0


def test_unfinished_uploads_that_are_not_listed_are_a_limitation_only(tmp_path: Path) -> None:
    with closing(ListsNoUploads(tmp_path, SystemIds(ManualClock()))) as store:
        results = try_store(store, SystemIds(ManualClock()), is_s3=True)
    assert [each.problem for each in results] == [None] * len(results)
    limited = {each.operation: each.limitation for each in results if each.limitation is not None}
    assert list(limited) == ["find and abort an unfinished upload"]
    assert "let the server abort uploads" in limited["find and abort an unfinished upload"]


class IgnoresConditions(LocalStore):
    """Store of a server that ignores `If-None-Match`."""

    @override
    def create(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        return self.put(name, body, purpose=purpose)


class IgnoresRanges(LocalStore):
    """Store of a server that always sends an object from its first byte."""

    @override
    def read_range(self, name: str, position: int, length: int, *, purpose: Purpose) -> bytearray:
        del position
        return super().read_range(name, 0, length, purpose=purpose)


class ListsLate(LocalStore):
    """Store of a server whose lists lack new objects and still contain deleted ones."""

    _listed: tuple[ObjectInfo, ...] = ()

    @override
    def list(self, prefix: str, *, purpose: Purpose) -> Iterator[ObjectInfo]:
        before, self._listed = self._listed, tuple(super().list(prefix, purpose=purpose))
        return iter(before)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (IgnoresConditions, {"write only if the name is free": "ignored If-None-Match"}),
        (
            IgnoresRanges,
            {"read ranges": "other bytes", "write a large object in parts": "joined to other bytes"},
        ),
        (
            ListsLate,
            {"write an object, and list it at once": "the list has []", "delete objects": "was deleted"},
        ),
    ],
)
def test_an_operation_that_a_store_does_otherwise_is_named(
    tmp_path: Path, kind: type[LocalStore], expected: dict[str, str]
) -> None:
    with closing(kind(tmp_path, SystemIds(ManualClock()))) as store:
        found = problems(store)

    assert found.keys() == expected.keys()
    for operation, problem in expected.items():
        assert problem in found[operation]
