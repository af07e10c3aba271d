"""Opens what a command works with, as the settings say, and closes it again in any case."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from catalog.open import EmbeddedPostgres, open_catalog
from core.clock import SystemClock
from core.errors import InvalidInputError, NotFoundError
from core.ids import SystemIds
from object_store.binding import tie
from object_store.open import StoreConfig, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from object_store.interface import ObjectStore
    from siltstone.settings.configuration import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """The parts that commands share; `store_config` is what Spark tasks open the same store with."""

    catalog: Catalog
    store: ObjectStore
    store_config: StoreConfig
    clock: Clock
    ids: Ids


@contextlib.contextmanager
def catalog_url(settings: Settings, *, create: bool = True) -> Iterator[str]:
    """Where the catalog is; the embedded PostgreSQL runs at least as long as the block.

    Without `create`, NotFoundError says that the data directory has no catalog.
    """
    if settings.catalog is not None:
        yield settings.catalog.get_secret_value()
        return
    if create:
        create_data_dir(settings)
    else:
        check_data_exists(settings)
    with EmbeddedPostgres(settings.data_dir / "catalog") as postgres:
        yield postgres.url


@contextlib.contextmanager
def open_context(
    settings: Settings, *, check_binding: bool = True, create: bool = True
) -> Iterator[AppContext]:
    """Catalog and object store, for as long as the block runs.

    Unless `tied` is False, the store is the catalog's own: who does not touch it need not make sure of that.
    `create` as in `catalog_url`.
    """
    clock = SystemClock()
    ids = SystemIds(clock)
    config = store_config(settings)
    with (
        catalog_url(settings, create=create) as url,
        contextlib.closing(open_catalog(url, clock, ids)) as catalog,
        contextlib.closing(open_store(config, clock, ids)) as store,
    ):
        if check_binding:
            tie(store, catalog.home, ids)
        yield AppContext(catalog=catalog, store=store, store_config=config, clock=catalog.clock, ids=ids)


def create_data_dir(settings: Settings) -> None:
    """Make the data directory where there is none; InvalidInputError says why it cannot be one."""
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        reason = "it is no directory" if isinstance(failure, FileExistsError) else failure.strerror
        raise InvalidInputError(
            f"data directory {settings.data_dir} cannot be made: {reason}",
            remedy="name a directory that this user may make or write to, with --data-dir",
        ) from None


def check_data_exists(settings: Settings) -> None:
    """Raise NotFoundError when a command that only looks would look at nothing."""
    if settings.catalog is None and not (settings.data_dir / "catalog").is_dir():
        raise NotFoundError(
            f"there is nothing in data directory {settings.data_dir}",
            remedy="name another one with --data-dir, or begin with: siltstone topics create NAME",
        )


def store_config(settings: Settings) -> StoreConfig:
    """Where segment files live."""
    return StoreConfig(
        url=settings.object_store_url, endpoint=settings.s3_endpoint, region=settings.s3_region
    )


def check_store(settings: Settings) -> None:
    """Raise what keeps the object store from being used, before anything rests on it."""
    if settings.object_store is None:
        create_data_dir(settings)
    clock = SystemClock()
    with contextlib.closing(open_store(store_config(settings), clock, SystemIds(clock))) as store:
        store.check()
