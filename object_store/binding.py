"""Identity of a store, and the binding between a catalog and its store.

A marker object at the store's root is a small JSON object with a UUID, which the store keeps wherever it is
moved. A catalog records the id of the store that holds its objects. A process that works with both calls
`verify_binding` before it writes, deletes or judges anything; this costs one GET. Several catalogs may share
a store: the id belongs to the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import orjson

from core.errors import CorruptDataError, InvalidInputError
from object_store.accounting import Purpose
from object_store.errors import (
    ForeignStoreError,
    LostIdentityError,
    ObjectExistsError,
    ObjectNotFoundError,
)
from object_store.names import IDENTITY_NAME

if TYPE_CHECKING:
    from typing import Final

    from core.ids import Ids
    from object_store.interface import ObjectStore

FORMAT_VERSION: Final = 1
_MAX_MARKER_BYTES: Final = 4096


class RecordedStore(Protocol):
    """The store that a catalog has recorded: `catalog.database.store_binding.StoreBinding`."""

    @property
    def store_id(self) -> UUID:
        """Id in the store's marker."""
        ...

    @property
    def url(self) -> str:
        """URL at which the store was last found."""
        ...


class BindingRecord(Protocol):
    """The part of a catalog that records its store."""

    def recorded(self) -> RecordedStore | None:
        """Return the recorded store, if there is one."""
        ...

    def bind(self, store_id: UUID, url: str) -> RecordedStore:
        """Record a store unless one is recorded; return the recorded one."""
        ...

    def move(self, store_id: UUID, url: str) -> None:
        """Record the URL at which the store is found now."""
        ...


def identify(store: ObjectStore, ids: Ids, *, make: bool) -> UUID | None:
    """Return the store's id with one GET; None if it has no marker, unless `make` creates one.

    If several processes create a marker, all return the winner's id. Raise CorruptDataError for a marker that
    cannot be parsed, InvalidInputError for a newer format.
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
    """Return the store's id with one GET; None if it has no marker. Raises as `identify` does."""
    try:
        data, _ = store.read_tail(IDENTITY_NAME, _MAX_MARKER_BYTES, purpose=Purpose.CHECK)
    except ObjectNotFoundError:
        return None
    return _parse(data, store.url)


def verify_binding(store: ObjectStore, record: BindingRecord, ids: Ids) -> None:
    """Verify that `store` holds the objects of the catalog with this record.

    A catalog without a recorded store records this one, which gets a marker if it has none. For a store that
    was moved together with its marker, the new URL is recorded. Raise ForeignStoreError if the catalog has
    another store, LostIdentityError if the marker is gone from where it was.
    """
    recorded = record.recorded()
    found = identify(store, ids, make=recorded is None)
    if recorded is None and found is not None:
        recorded = record.bind(found, store.url)
    if recorded is None:  # the marker was deleted while it was created
        raise LostIdentityError(
            f"the marker {IDENTITY_NAME!r} of {store.url} was deleted", remedy="try again"
        )
    _compare(store, recorded, found)
    if recorded.url != store.url:
        record.move(recorded.store_id, store.url)


def probe(store: ObjectStore) -> None:
    """Read the marker with one GET; raise LostIdentityError if it is gone."""
    if read_identity(store) is None:
        raise LostIdentityError(
            f"the marker {IDENTITY_NAME!r} is gone from {store.url}",
            remedy="run siltstone fsck, which says how to restore it",
        )


def require_bound(store: ObjectStore, record: BindingRecord) -> None:
    """Verify the binding without writing; accept a catalog without a recorded store."""
    recorded = record.recorded()
    if recorded is not None:
        _compare(store, recorded, read_identity(store))


def _compare(store: ObjectStore, recorded: RecordedStore, found: UUID | None) -> None:
    if found == recorded.store_id:
        return
    if found is None and recorded.url == store.url:
        raise LostIdentityError(
            f"the marker {IDENTITY_NAME!r} is gone from {store.url}, which holds this catalog's objects:"
            " the store was emptied or restored in part, or it is another store",
            remedy=(
                f"{_endpoint_first(recorded.url)}restore the store; if only the marker is missing,"
                f" write it again: {_marker(recorded.store_id).decode()}"
            ),
        )
    other = (
        "is another object store" if recorded.url != store.url else "is now another object store at that URL"
    )
    raise ForeignStoreError(
        f"this catalog's objects are in {recorded.url}, and {store.url} {other}",
        remedy=f"give --object-store {recorded.url}{_endpoint_too(recorded.url)}",
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
            f"{IDENTITY_NAME!r} in {where} is not a valid store marker",
            remedy="restore it from a copy",
        ) from error
    if version > FORMAT_VERSION:
        raise InvalidInputError(
            f"{IDENTITY_NAME!r} in {where} has format {version}, this Siltstone knows {FORMAT_VERSION}",
            remedy="use the newer Siltstone that wrote it",
        )
    return parsed
