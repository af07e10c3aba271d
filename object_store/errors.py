"""What an object store can refuse, sorted by what the caller must do about it.

::

    RetryableError
    ├── StoreUnavailableError    the store is busy, away or full: wait, then make the same call again
    └── ObjectsNotDeletedError   some of a batch are still there: call again with those
    StaleStateError
    ├── ObjectExistsError        create: somebody has the name
    ├── ObjectChangedError       the object was replaced while it was read
    └── UploadLostError          an upload was swept away while it was written: begin anew
    InvalidInputError
    ├── StoreAccessError         wrong credentials, bucket, endpoint or file permissions
    ├── ForeignStoreError        the catalog's objects are in another store
    ├── LostIdentityError        the store does not say any more which it is
    └── StoreClosedError         the store, stream or upload was closed before
    NotFoundError
    └── ObjectNotFoundError      no object of that name
    CorruptDataError
    └── ObjectTooShortError      the object ends before the range that was asked for
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import CorruptDataError, InvalidInputError, NotFoundError, RetryableError, StaleStateError

if TYPE_CHECKING:
    from collections.abc import Mapping


class StoreUnavailableError(RetryableError):
    """The store did not do it, and may later; after a write, whether it was done is unknown."""


class ObjectsNotDeletedError(RetryableError):
    """A delete went through in part; `failures` says which names are still there, and why."""

    def __init__(self, where: str, failures: Mapping[str, str]) -> None:
        name, reason = next(iter(failures.items()))
        super().__init__(
            f"{len(failures)} objects could not be deleted from {where}; the first is {name!r}: {reason}",
            remedy="delete those that `failures` names again",
        )
        self.failures = dict(failures)


class ObjectExistsError(StaleStateError):
    """An object of that name exists and was written by somebody else."""


class ObjectChangedError(StaleStateError):
    """The object that is there now is not the one whose reading was begun."""


class UploadLostError(StaleStateError):
    """What was uploaded so far is gone: it was swept away as unfinished."""


class StoreAccessError(InvalidInputError):
    """The store cannot be used as it is configured: credentials, bucket, endpoint or permissions."""


class ForeignStoreError(InvalidInputError):
    """The catalog's objects are in another store than the one that was given."""


class LostIdentityError(InvalidInputError):
    """There is no marker where the catalog's store was: it was emptied, or restored without it."""


class StoreClosedError(InvalidInputError):
    """A call on a store, stream or upload that was closed."""


class ObjectNotFoundError(NotFoundError):
    """There is no object of that name."""


class ObjectTooShortError(CorruptDataError):
    """The object has fewer bytes than the caller was told that it has."""
