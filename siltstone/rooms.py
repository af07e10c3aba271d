"""Opens what a command works with, as the settings say, and closes it again in any case."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from catalog.open import EmbeddedPostgres, open_catalog

from bedrock.clock import SystemClock
from bedrock.ids import SystemIds
from object_store.open import StoreConfig, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.open import Catalog

    from bedrock.clock import Clock
    from bedrock.ids import Ids
    from object_store.interface import ObjectStore
    from siltstone.configuration import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """The parts that commands share; `store_config` is what Spark tasks open the same store with."""

    catalog: Catalog
    store: ObjectStore
    store_config: StoreConfig
    clock: Clock
    ids: Ids


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[Rooms]:
    """Catalog and object store, for as long as the block runs; starts the embedded PostgreSQL if need be."""
    clock = SystemClock()
    ids = SystemIds(clock)
    config = store_config(settings)
    with contextlib.ExitStack() as open_parts:
        if settings.catalog is None:
            url = open_parts.enter_context(EmbeddedPostgres(settings.data_dir / "catalog")).url
        else:
            url = settings.catalog.get_secret_value()
        catalog = open_parts.enter_context(contextlib.closing(open_catalog(url, clock, ids)))
        store = open_parts.enter_context(contextlib.closing(open_store(config, clock, ids)))
        yield Rooms(catalog=catalog, store=store, store_config=config, clock=clock, ids=ids)


def store_config(settings: Settings) -> StoreConfig:
    """Where segment files live."""
    return StoreConfig(
        url=settings.object_store_url, endpoint=settings.s3_endpoint, region=settings.s3_region
    )
