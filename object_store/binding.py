"""Which store this is: a marker object at its root, and the tie between a store and a catalog.

The marker is a small JSON object with a UUID that the store keeps for good, wherever it is moved. A catalog
notes the id of the store that holds its objects; a process that works with both calls `tie` before it writes,
deletes or judges anything, at the cost of one GET. Several catalogs may share a store: the id is the store's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import orjson

from core.errors import CorruptDataError, InvalidInputError
from object_store.errors import (
    ForeignStoreError,
    LostIdentityError,
    ObjectExistsError,
    ObjectNotFoundError,
)
from object_store.interface import Purpose
from object_store.names import IDENTITY_NAME

if TYPE_CHECKING:
    from typing import Final

    from core.ids import Ids
    from object_store.interface import ObjectStore

FORMAT_VERSION: Final = 1
_LONGEST_MARKER: Final = 4096


class NotedStore(Protocol):
    """What a catalog has noted of its store: `catalog.database.store_binding.StoreBinding`."""

    @property
    def store_id(self) -> UUID:
        """The id in the store's marker."""
        ...

    @property
    def url(self) -> str:
        """Where the store was last found."""
        ...


class StoreNotes(Protocol):
    """Where a catalog notes its store: `Catalog.home`."""

    def recorded(self) -> NotedStore | None:
        """What is noted, if anything is."""
        ...

    def bind(self, store_id: UUID, url: str) -> NotedStore:
        """Note a store unless one is noted; returns what is noted afterwards."""
        ...

    def move(self, store_id: UUID, url: str) -> None:
        """Note where that store is found now."""
        ...


def identify(store: ObjectStore, ids: Ids, *, make: bool) -> UUID | None:
    """The store's id, by one GET; None when it has no marker, unless `make` gives it one.

    Of several processes that make one, all return the winner's. Raises CorruptDataError for a marker that
    makes no sense, InvalidInputError for one of a newer format.
    """
    found = read_identity(store)
    if found is not None or not make:
        return found
    made = ids.new_uuid()
    try:
        store.create(IDENTITY_NAME, [_marker(made)], purpose=Purpose.CHECK)
    except ObjectExistsError:
        return read_identity(store)
    return made


def read_identity(store: ObjectStore) -> UUID | None:
    """The store's id, by one GET; None when it has no marker. Raises as `identify` does."""
    try:
        data, _ = store.read_tail(IDENTITY_NAME, _LONGEST_MARKER, purpose=Purpose.CHECK)
    except ObjectNotFoundError:
        return None
    return _parse(data, store.url)


def tie(store: ObjectStore, notes: StoreNotes, ids: Ids) -> None:
    """Make sure that `store` holds the objects of the catalog whose notes these are.

    A catalog that has noted no store gets this one, which gets a marker when it has none. A store that was
    moved and has kept its marker is noted where it is now. Raises ForeignStoreError when the catalog has
    another store, LostIdentityError when the marker is gone from where it was.
    """
    noted = notes.recorded()
    found = identify(store, ids, make=noted is None)
    if noted is None and found is not None:
        noted = notes.bind(found, store.url)
    if noted is None:  # the marker went while it was made
        raise LostIdentityError(
            f"the marker {IDENTITY_NAME!r} of {store.url} was deleted", remedy="try again"
        )
    _compare(store, noted, found)
    if noted.url != store.url:
        notes.move(noted.store_id, store.url)


def require_tied(store: ObjectStore, notes: StoreNotes) -> None:
    """As `tie`, but writes nothing; a catalog that has noted no store has nothing to compare."""
    noted = notes.recorded()
    if noted is not None:
        _compare(store, noted, read_identity(store))


def _compare(store: ObjectStore, noted: NotedStore, found: UUID | None) -> None:
    if found == noted.store_id:
        return
    if found is None and noted.url == store.url:
        raise LostIdentityError(
            f"the marker {IDENTITY_NAME!r} is gone from {store.url}, which holds this catalog's objects:"
            " the store was emptied, restored in part, or is not the one that was meant",
            remedy=(
                f"{_endpoint_first(noted.url)}restore the store; if nothing but the marker is missing,"
                f" write it again: {_marker(noted.store_id).decode()}"
            ),
        )
    other = (
        "is another object store" if noted.url != store.url else "is now another object store of that name"
    )
    raise ForeignStoreError(
        f"this catalog's objects are in {noted.url}, and {store.url} {other}",
        remedy=f"give --object-store {noted.url}{_endpoint_too(noted.url)}",
    )


def _endpoint_too(url: str) -> str:
    return " and its --s3-endpoint" if url.startswith("s3:") else ""


def _endpoint_first(url: str) -> str:
    return "give the right --s3-endpoint, or " if url.startswith("s3:") else ""


def _marker(store_id: UUID) -> bytes:
    return orjson.dumps({"format_version": FORMAT_VERSION, "store_id": str(store_id)})


def _parse(data: bytearray, where: str) -> UUID:
    try:
        marker = orjson.loads(data)
        version, store_id = int(marker["format_version"]), str(marker["store_id"])
        parsed = UUID(store_id)
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptDataError(
            f"{IDENTITY_NAME!r} in {where} does not say which object store that is",
            remedy="restore it from a copy",
        ) from error
    if version > FORMAT_VERSION:
        raise InvalidInputError(
            f"{IDENTITY_NAME!r} in {where} has format {version}, this Siltstone knows only {FORMAT_VERSION}",
            remedy="use the newer Siltstone that has written it",
        )
    return parsed
