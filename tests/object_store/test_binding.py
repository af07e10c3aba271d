"""A store knows which it is, and a catalog is held to the store that has its objects."""

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
class _Noted:
    store_id: UUID
    url: str


class _Notes:
    """What `catalog.database.store_binding` does, without a database."""

    def __init__(self, noted: _Noted | None = None) -> None:
        self.noted = noted

    def recorded(self) -> _Noted | None:
        return self.noted

    def bind(self, store_id: UUID, url: str) -> _Noted:
        self.noted = self.noted or _Noted(store_id, url)
        return self.noted

    def move(self, store_id: UUID, url: str) -> None:
        assert self.noted is not None
        assert self.noted.store_id == store_id
        self.noted = _Noted(store_id, url)


@pytest.fixture
def ids(clock: ManualClock) -> Ids:
    return SystemIds(clock)


@pytest.fixture
def other(tmp_path: Path, clock: ManualClock, ids: Ids) -> Iterator[ObjectStore]:
    """A store that has nothing to do with the first."""
    with closing(open_store(StoreConfig(str(tmp_path / "other")), clock, ids)) as opened:
        yield opened


def requests(store: ObjectStore) -> dict[RequestKind, int]:
    """What the checks of this store object cost so far, and nothing was asked for another purpose."""
    snapshot = store.counts.snapshot()
    assert snapshot.of().requests == snapshot.of(purpose=Purpose.CHECK).requests
    return {kind: number for kind in RequestKind if (number := snapshot.of(kind).requests)}


def remove_marker(store: ObjectStore) -> None:
    store.delete([names.IDENTITY_NAME], purpose=Purpose.GC)


def overwrite_marker(store: ObjectStore, data: bytes) -> None:
    store.put(names.IDENTITY_NAME, [data], purpose=Purpose.INGEST)


def listed(store: ObjectStore, prefix: str) -> list[str]:
    return [info.name for info in store.list(prefix, purpose=Purpose.GC)]


def test_a_store_without_a_marker_is_nobody_until_it_gets_one(store: ObjectStore, ids: Ids) -> None:
    assert identify(store, ids, make=False) is None
    made = identify(store, ids, make=True)
    assert made is not None
    assert identify(store, ids, make=True) == identify(store, ids, make=False) == made
    assert requests(store) == {RequestKind.GET: 4, RequestKind.PUT: 1}


def test_the_marker_lies_where_nobody_walks(store: ObjectStore, ids: Ids) -> None:
    identify(store, ids, make=True)
    assert listed(store, "") == [names.IDENTITY_NAME]
    assert listed(store, names.ROOT_PREFIX) == []
    assert names.parse(names.IDENTITY_NAME) is None
    data, size = store.read_tail(names.IDENTITY_NAME, 4096, purpose=Purpose.GC)
    marker = orjson.loads(data)
    assert marker == {"format_version": 1, "store_id": str(read_identity(store))}
    assert size < 100


def test_all_who_make_a_marker_at_once_find_the_same(store: ObjectStore, ids: Ids) -> None:
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
def test_a_marker_without_sense_is_corrupt(store: ObjectStore, data: bytes) -> None:
    overwrite_marker(store, data)
    with pytest.raises(CorruptDataError, match=f"{names.IDENTITY_NAME}.*is not a valid store marker"):
        read_identity(store)


def test_a_marker_of_a_newer_format_is_refused(store: ObjectStore) -> None:
    overwrite_marker(store, orjson.dumps({"format_version": 2, "store_id": str(UUID(int=1))}))
    with pytest.raises(InvalidInputError, match=r"format 2.*newer Siltstone"):
        read_identity(store)


def test_the_first_tie_binds_and_every_later_one_costs_one_get(
    store: ObjectStore, store_config: StoreConfig, clock: ManualClock, ids: Ids
) -> None:
    notes = _Notes()
    verify_binding(store, notes, ids)
    assert notes.noted == _Noted(read_identity(store) or UUID(int=0), store.url)
    noted = notes.noted
    with closing(open_store(store_config, clock, ids)) as again:
        verify_binding(again, notes, ids)
        assert requests(again) == {RequestKind.GET: 1}
        require_bound(again, notes)
        assert requests(again) == {RequestKind.GET: 2}
    assert notes.noted == noted


def test_several_catalogs_share_a_store(store: ObjectStore, ids: Ids) -> None:
    first, second = _Notes(), _Notes()
    verify_binding(store, first, ids)
    verify_binding(store, second, ids)
    assert first.noted == second.noted


@pytest.mark.parametrize("marked", [True, False])
def test_another_store_is_refused_and_left_as_it_is(
    store: ObjectStore, other: ObjectStore, ids: Ids, *, marked: bool
) -> None:
    notes = _Notes()
    verify_binding(store, notes, ids)
    noted = notes.noted
    if marked:
        identify(other, ids, make=True)
    before = listed(other, "")
    expected = (
        f"this catalog's objects are in {store.url}, and {other.url} is another object store"
        f" (give --object-store {store.url}"
    )
    with pytest.raises(ForeignStoreError, match=re.escape(expected)) as caught:
        verify_binding(other, notes, ids)
    assert ("--s3-endpoint" in str(caught.value)) is store.url.startswith("s3:")
    with pytest.raises(ForeignStoreError, match=re.escape(expected)):
        require_bound(other, notes)
    assert (notes.noted, listed(other, "")) == (noted, before)


def test_another_store_of_the_same_name_is_refused(store: ObjectStore, ids: Ids) -> None:
    """As on another server, or after a bucket was made anew by somebody else."""
    notes = _Notes(_Noted(UUID(int=7), store.url))
    identify(store, ids, make=True)
    with pytest.raises(ForeignStoreError, match="is now another object store at that URL"):
        verify_binding(store, notes, ids)


def test_a_store_that_was_emptied_is_refused_and_gets_no_marker(store: ObjectStore, ids: Ids) -> None:
    notes = _Notes()
    verify_binding(store, notes, ids)
    remove_marker(store)
    with pytest.raises(LostIdentityError, match="is gone from") as caught:
        verify_binding(store, notes, ids)
    with pytest.raises(LostIdentityError):
        require_bound(store, notes)
    assert listed(store, "") == []
    assert caught.value.remedy is not None
    overwrite_marker(store, caught.value.remedy.partition("again: ")[2].encode())
    verify_binding(store, notes, ids)


def test_a_store_that_moved_with_its_marker_is_noted_where_it_is(
    store: ObjectStore, other: ObjectStore, ids: Ids
) -> None:
    notes = _Notes()
    verify_binding(store, notes, ids)
    assert notes.noted is not None
    data, _ = store.read_tail(names.IDENTITY_NAME, 4096, purpose=Purpose.CHECK)
    overwrite_marker(other, bytes(data))
    require_bound(other, notes)
    assert notes.noted.url == store.url
    verify_binding(other, notes, ids)
    assert notes.noted == _Noted(notes.noted.store_id, other.url)


def test_a_catalog_that_was_bound_meanwhile_is_held_to_the_winner(store: ObjectStore, ids: Ids) -> None:
    class Overtaken(_Notes):
        @override
        def bind(self, store_id: UUID, url: str) -> _Noted:
            self.noted = _Noted(UUID(int=7), "s3://the-winner/six")
            return super().bind(store_id, url)

    with pytest.raises(ForeignStoreError, match="objects are in s3://the-winner/six"):
        verify_binding(store, Overtaken(), ids)


def test_without_a_note_there_is_nothing_to_compare(store: ObjectStore) -> None:
    require_bound(store, _Notes())
    assert requests(store) == {}
