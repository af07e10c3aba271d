"""The catalog and the object store of a command, opened as the settings say and always closed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from catalog.open import DatabaseLimits, EmbeddedPostgres, migrate_catalog, open_catalog
from core.clock import SystemClock
from core.errors import InvalidInputError, NotFoundError
from core.ids import SystemIds
from core.outage import StartWait
from object_store.binding import verify_binding
from object_store.open import StoreConfig, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from object_store.interface import ObjectStore
    from siltstone.settings.configuration import Settings

T = TypeVar("T")
_CHECK_TIMEOUT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """Parts that commands share; Spark tasks open the same store by `store_config`."""

    catalog: Catalog
    store: ObjectStore
    store_config: StoreConfig
    clock: Clock
    ids: Ids


@contextlib.contextmanager
def catalog_url(settings: Settings, *, create: bool = True) -> Iterator[str]:
    """Yield the URL of the catalog; the embedded PostgreSQL runs at least as long as the block.

    It is started again if it ends. The embedded catalog gets the schema of this code; in a server, only
    `siltstone migrate` changes it. Without `create`, raise NotFoundError if the data directory has no
    catalog.
    """
    if settings.catalog is not None:
        yield settings.catalog.get_secret_value()
        return
    if create:
        create_data_dir(settings)
    else:
        check_data_exists(settings)
    clock = SystemClock()
    with EmbeddedPostgres(settings.data_dir / "catalog") as postgres:
        postgres.keep_running()
        migrate_catalog(postgres.url, clock, SystemIds(clock))
        yield postgres.url


@contextlib.contextmanager
def create_catalog_ahead(settings: Settings) -> Iterator[None]:
    """Create the embedded PostgreSQL of a new data directory while the block loads code.

    `catalog_url` waits for it, starts it, and reports its errors.
    """
    if settings.catalog is not None:
        yield
        return
    with EmbeddedPostgres(settings.data_dir / "catalog").create_ahead():
        yield


def database_limits(settings: Settings) -> DatabaseLimits:
    """Return the limits of this process's connections to the catalog."""
    return replace(settings.database, allow_unsafe_commits=settings.allow_unsafe_commits)


def start_wait(settings: Settings) -> StartWait:
    """Return how long a process that runs for long waits, from now, for the catalog and the store."""
    clock = SystemClock()
    return StartWait(settings.start_timeout_seconds, clock=clock, ids=SystemIds(clock))


@contextlib.contextmanager
def open_context(
    settings: Settings, *, check_binding: bool = True, create: bool = True, wait: StartWait | None = None
) -> Iterator[AppContext]:
    """Open the catalog and the object store for the duration of the block.

    Raise an error if the store is not bound to the catalog, unless `check_binding` is False: a command that
    does not use the store need not check. `create` is as in `catalog_url`. With `wait`, wait for a catalog
    and a store that do not respond.
    """
    clock = SystemClock()
    ids = SystemIds(clock)
    config = store_config(settings)
    run = _run_once if wait is None else wait.run
    opening = partial(
        open_catalog,
        clock=clock,
        ids=ids,
        limits=database_limits(settings),
        listen_url=settings.listen_url,
    )
    with (
        catalog_url(settings, create=create) as url,
        contextlib.closing(run("opening the catalog", partial(opening, url))) as catalog,
        contextlib.closing(open_store(config, clock, ids)) as store,
    ):
        if check_binding:
            bind = partial(verify_binding, store, catalog.store_binding, ids)
            run("checking that the object store belongs to the catalog", bind)
        yield AppContext(catalog=catalog, store=store, store_config=config, clock=catalog.clock, ids=ids)


def create_data_dir(settings: Settings) -> None:
    """Create the data directory if it does not exist; raise InvalidInputError if that is impossible."""
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        reason = "it is not a directory" if isinstance(failure, FileExistsError) else failure.strerror
        raise InvalidInputError(
            f"data directory {settings.data_dir} cannot be created: {reason}",
            remedy="name a directory that this user may create or write to, with --data-dir",
        ) from None


def check_data_exists(settings: Settings) -> None:
    """Raise NotFoundError if there is no catalog yet, for commands that have nothing to do without one."""
    if settings.catalog is None and not (settings.data_dir / "catalog").is_dir():
        raise NotFoundError(
            f"data directory {settings.data_dir} has no catalog",
            remedy="name another one with --data-dir, or start with: siltstone topics create NAME",
        )


def store_config(settings: Settings) -> StoreConfig:
    """Return how to open the object store."""
    return StoreConfig(
        url=settings.object_store_url,
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        ca_bundle=None if settings.s3_ca_bundle is None else str(settings.s3_ca_bundle.absolute()),
    )


def check_store(settings: Settings, *, wait: StartWait | None = None) -> None:
    """Raise an error if the object store cannot be used, before anything else is started.

    With `wait`, wait for a store that does not respond.
    """
    if settings.object_store is None:
        create_data_dir(settings)
    clock = SystemClock()
    # A wait has its own pauses between attempts.
    timeout_seconds = None if wait is None else _CHECK_TIMEOUT_SECONDS
    with contextlib.closing(
        open_store(store_config(settings), clock, SystemIds(clock), probe_timeout_seconds=timeout_seconds)
    ) as store:
        run = _run_once if wait is None else wait.run
        run("checking the object store", store.check)


def _run_once(_step: str, call: Callable[[], T]) -> T:
    """Do the same as `StartWait.run`, without waiting."""
    return call()
