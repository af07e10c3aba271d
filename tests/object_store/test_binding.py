"""A store has an identity, and a catalog accepts only the store that it is bound to."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import orjson
import pytest
from typing_extensions import override

from core.errors import CorruptDataError, InvalidInputError
from core.ids import SystemIds
from object_store import names
from object_store.accounting import Purpose, RequestKind
from object_store.binding import identify, read_identity, require_bound, verify_binding
from object_store.errors import ForeignStoreError, LostIdentityError
from object_store.open import StoreConfig, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from core.clock import ManualClock
    from core.ids import Ids
    from object_store.interface import ObjectStore


@dataclass(frozen=True)
class _Record:
    store_id: UUID
    url: str


class _InMemoryBinding:
    """`catalog.database.store_binding` without a database."""

    def __init__(self, record: _Record | None = None) -> None:
        self.record = record

    def recorded(self) -> _Record | None:
        return self.record

    def bind(self, store_id: UUID, url: str) -> _Record:
        self.record = self.record or _Record(store_id, url)
        return self.record

    def move(self, store_id: UUID, url: str) -> None:
        assert self.record is not None
        assert self.record.store_id == store_id
        self.record = _Record(store_id, url)


@pytest.fixture
def ids(clock: ManualClock) -> Ids:
    return SystemIds(clock)


@pytest.fixture
def other(tmp_path: Path, clock: ManualClock, ids: Ids) -> Iterator[ObjectStore]:
    """An unrelated store."""
    with closing(open_store(StoreConfig(str(tmp_path / "other")), clock, ids)) as unrelated:
        yield unrelated


def requests(store: ObjectStore) -> dict[RequestKind, int]:
    """Return the requests of this store's checks; verify that there were no others."""
    snapshot = store.counts.snapshot()
    assert snapshot.of().requests == snapshot.of(purpose=Purpose.CHECK).requests
    return {kind: count for kind in RequestKind if (count := snapshot.of(kind).requests)}


def delete_marker(store: ObjectStore) -> None:
    store.delete([names.IDENTITY_NAME], purpose=Purpose.GC)


def overwrite_marker(store: ObjectStore, data: bytes) -> None:
    store.put(names.IDENTITY_NAME, [data], purpose=Purpose.INGEST)


def listed(store: ObjectStore, prefix: str) -> list[str]:
    return [info.name for info in store.list(prefix, purpose=Purpose.GC)]


def test_a_store_has_no_identity_until_its_marker_is_written(store: ObjectStore, ids: Ids) -> None:
    assert identify(store, ids, make=False) is None
    created = identify(store, ids, make=True)
    assert created is not None
    assert identify(store, ids, make=True) == identify(store, ids, make=False) == created
    assert requests(store) == {RequestKind.GET: 4, RequestKind.PUT: 1}


def test_the_marker_is_outside_the_prefix_of_data(store: ObjectStore, ids: Ids) -> None:
    identify(store, ids, make=True)
    assert listed(store, "") == [names.IDENTITY_NAME]
    assert all(listed(store, root) == [] for root in names.ROOT_PREFIXES)
    assert names.parse(names.IDENTITY_NAME) is None
    data, size = store.read_tail(names.IDENTITY_NAME, 4096, purpose=Purpose.GC)
    marker = orjson.loads(data)
    assert marker == {"format_version": 1, "store_id": str(read_identity(store))}
    assert size < 100


def test_concurrent_writers_of_a_marker_agree_on_one(store: ObjectStore, ids: Ids) -> None:
    barrier = threading.Barrier(4)

    def make(_: int) -> UUID | None:
        barrier.wait()
        return identify(store, ids, make=True)

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(make, range(4))) == {read_identity(store)}


@pytest.mark.parametrize(
    "data",
    [
        b"not JSON",
        b"[]",
        b"{}",
        b'{"format_version": 1, "store_id": "seven"}',
        b'{"format_version": null, "store_id": "00000000-0000-0000-0000-000000000001"}',
        b" " * 5000,
    ],
)
def test_an_unreadable_marker_is_corrupt(store: ObjectStore, data: bytes) -> None:
    overwrite_marker(store, data)
    with pytest.raises(CorruptDataError, match=f"{names.IDENTITY_NAME}.*is not a valid store marker"):
        read_identity(store)


def test_a_marker_of_a_newer_format_is_rejected(store: ObjectStore) -> None:
    overwrite_marker(store, orjson.dumps({"format_version": 2, "store_id": str(UUID(int=1))}))
    with pytest.raises(InvalidInputError, match=r"format 2.*newer Siltstone"):
        read_identity(store)


def test_the_first_verification_binds_and_each_later_one_costs_one_get(
    store: ObjectStore, store_config: StoreConfig, clock: ManualClock, ids: Ids
) -> None:
    binding = _InMemoryBinding()
    verify_binding(store, binding, ids)
    assert binding.record == _Record(read_identity(store) or UUID(int=0), store.url)
    record = binding.record
    with closing(open_store(store_config, clock, ids)) as again:
        verify_binding(again, binding, ids)
        assert requests(again) == {RequestKind.GET: 1}
        require_bound(again, binding)
        assert requests(again) == {RequestKind.GET: 2}
    assert binding.record == record


def test_several_catalogs_may_share_a_store(store: ObjectStore, ids: Ids) -> None:
    first, second = _InMemoryBinding(), _InMemoryBinding()
    verify_binding(store, first, ids)
    verify_binding(store, second, ids)
    assert first.record == second.record


@pytest.mark.parametrize("marked", [True, False])
def test_another_store_is_rejected_and_stays_unchanged(
    store: ObjectStore, other: ObjectStore, ids: Ids, *, marked: bool
) -> None:
    binding = _InMemoryBinding()
    verify_binding(store, binding, ids)
    record = binding.record
    if marked:
        identify(other, ids, make=True)
    before = listed(other, "")
    expected = (
        f"this catalog's objects are in {store.url}, and {other.url} is another object store"
        f" (give --object-store {store.url}"
    )
    with pytest.raises(ForeignStoreError, match=re.escape(expected)) as caught:
        verify_binding(other, binding, ids)
    assert ("--s3-endpoint" in str(caught.value)) is store.url.startswith("s3:")
    with pytest.raises(ForeignStoreError, match=re.escape(expected)):
        require_bound(other, binding)
    assert (binding.record, listed(other, "")) == (record, before)


def test_another_store_at_the_same_url_is_rejected(store: ObjectStore, ids: Ids) -> None:
    """Another server, or another owner's new bucket, may have the same URL."""
    binding = _InMemoryBinding(_Record(UUID(int=7), store.url))
    identify(store, ids, make=True)
    with pytest.raises(ForeignStoreError, match="is now another object store at that URL"):
        verify_binding(store, binding, ids)


def test_an_emptied_store_is_rejected_and_gets_no_marker(store: ObjectStore, ids: Ids) -> None:
    binding = _InMemoryBinding()
    verify_binding(store, binding, ids)
    delete_marker(store)
    with pytest.raises(LostIdentityError, match="is gone from") as caught:
        verify_binding(store, binding, ids)
    with pytest.raises(LostIdentityError):
        require_bound(store, binding)
    assert listed(store, "") == []
    assert caught.value.remedy is not None
    overwrite_marker(store, caught.value.remedy.partition("again: ")[2].encode())
    verify_binding(store, binding, ids)


def test_the_url_of_a_moved_store_is_recorded(store: ObjectStore, other: ObjectStore, ids: Ids) -> None:
    binding = _InMemoryBinding()
    verify_binding(store, binding, ids)
    assert binding.record is not None
    data, _ = store.read_tail(names.IDENTITY_NAME, 4096, purpose=Purpose.CHECK)
    overwrite_marker(other, bytes(data))
    require_bound(other, binding)
    assert binding.record.url == store.url
    verify_binding(other, binding, ids)
    assert binding.record == _Record(binding.record.store_id, other.url)


def test_a_concurrent_binding_of_another_store_wins(store: ObjectStore, ids: Ids) -> None:
    class BoundConcurrently(_InMemoryBinding):
        @override
        def bind(self, store_id: UUID, url: str) -> _Record:
            self.record = _Record(UUID(int=7), "s3://first-binding/six")
            return super().bind(store_id, url)

    with pytest.raises(ForeignStoreError, match="objects are in s3://first-binding/six"):
        verify_binding(store, BoundConcurrently(), ids)


def test_an_unbound_catalog_accepts_any_store_without_a_request(store: ObjectStore) -> None:
    require_bound(store, _InMemoryBinding())
    assert requests(store) == {}
