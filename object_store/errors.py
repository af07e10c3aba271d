"""Errors of object stores, grouped by what the caller must do.

::

    RetryableError
    ├── StoreUnavailableError    the store is busy, unreachable or full: wait, then repeat the call
    └── ObjectsNotDeletedError   some objects of a batch still exist: repeat the call with those
    StaleStateError
    ├── ObjectExistsError        create: the name is taken
    ├── ObjectChangedError       the object was replaced while it was read
    └── UploadLostError          an upload was swept away while it was written: start again
    InvalidInputError
    ├── StoreAccessError         wrong credentials, bucket, endpoint or file permissions
    ├── ForeignStoreError        the catalog's objects are in another store
    ├── LostIdentityError        the store has lost its marker
    └── StoreClosedError         the store, stream or upload is closed
    NotFoundError
    └── ObjectNotFoundError      no object of that name
    CorruptDataError
    └── ObjectTooShortError      the object ends before the requested range
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import CorruptDataError, InvalidInputError, NotFoundError, RetryableError, StaleStateError
from core.quantities import count

if TYPE_CHECKING:
    from collections.abc import Mapping


class StoreUnavailableError(RetryableError):
    """The store failed now and may succeed later; the outcome of a failed write is unknown."""


class ObjectsNotDeletedError(RetryableError):
    """A delete succeeded in part; `failures` has the names that still exist and the reasons."""

    def __init__(self, where: str, failures: Mapping[str, str]) -> None:
        name, reason = next(iter(failures.items()))
        super().__init__(
            f"{count(len(failures), 'object')} could not be deleted from {where};"
            f" the first is {name!r}: {reason}"
        )
        self.failures = dict(failures)


class ObjectExistsError(StaleStateError):
    """An object of that name exists and was written by another caller."""


class ObjectChangedError(StaleStateError):
    """The object was replaced after reading began."""


class UploadLostError(StaleStateError):
    """The parts uploaded so far are gone: they were swept away as unfinished."""


class StoreAccessError(InvalidInputError):
    """The store's configuration is wrong: credentials, bucket, endpoint or permissions."""


class ForeignStoreError(InvalidInputError):
    """The catalog's objects are in another store than the given one."""


class LostIdentityError(InvalidInputError):
    """The catalog's store has no marker: it was emptied, or restored without it."""


class StoreClosedError(InvalidInputError):
    """The store, stream or upload is closed."""


class ObjectNotFoundError(NotFoundError):
    """No object has that name."""


class ObjectTooShortError(CorruptDataError):
    """The object is shorter than expected."""
