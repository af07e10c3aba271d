"""The catalog records the first object store that it is bound to."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from catalog.database.store_binding import StoreBinding

if TYPE_CHECKING:
    from catalog.open import Catalog

pytestmark = pytest.mark.integration

_FIRST, _SECOND = UUID(int=1), UUID(int=2)


def test_a_new_catalog_has_no_recorded_store(catalog: Catalog) -> None:
    assert catalog.store_binding.recorded() is None


def test_the_first_store_is_never_replaced(catalog: Catalog) -> None:
    first = StoreBinding(store_id=_FIRST, url="s3://one")
    assert catalog.store_binding.bind(_FIRST, "s3://one") == first
    assert catalog.store_binding.bind(_SECOND, "s3://two") == first
    assert catalog.store_binding.bind(_FIRST, "s3://elsewhere") == first
    assert catalog.store_binding.recorded() == first


def test_concurrent_bindings_return_the_same_store(catalog: Catalog) -> None:
    barrier = threading.Barrier(4)

    def bind(number: int) -> StoreBinding:
        barrier.wait()
        return catalog.store_binding.bind(UUID(int=number), f"s3://bucket/{number}")

    with ThreadPoolExecutor(4) as pool:
        stores = set(pool.map(bind, range(4)))
    assert stores == {catalog.store_binding.recorded()}


def test_only_the_recorded_store_can_move(catalog: Catalog) -> None:
    catalog.store_binding.bind(_FIRST, "s3://one")
    catalog.store_binding.move(_FIRST, "s3://moved")
    catalog.store_binding.move(_SECOND, "s3://another")
    assert catalog.store_binding.recorded() == StoreBinding(store_id=_FIRST, url="s3://moved")
