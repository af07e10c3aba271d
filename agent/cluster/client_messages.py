"""Error messages for clients, without details of the systems behind the agent.

Messages of the catalog, the object store and the disks name hosts, buckets and directories. They go to the
agent's log only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.cluster.errors import AppendFailedError, NotLeaderError, ReadFailedError
from agent.runtime.errors import BusyError, StoppingError
from catalog.errors import (
    CatalogAddressError,
    CatalogUnavailableError,
    SchemaVersionError,
)
from core.errors import CorruptDataError, InvalidInputError, RetryableError, SiltstoneError, StaleStateError
from local_tier.errors import (
    InconsistentTopicError,
    LogClosedError,
    LogDirectoryOfflineError,
    ProcessLimitError,
)
from object_format.segment_file import UnsupportedFormatError
from object_store.errors import (
    ForeignStoreError,
    LostIdentityError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreClosedError,
    StoreUnavailableError,
    UploadLostError,
)

if TYPE_CHECKING:
    from core.ids import Ids

_CLIENT_ERRORS: Final = (
    InvalidInputError,
    StaleStateError,
    AppendFailedError,
    BusyError,
    StoppingError,
    NotLeaderError,
)
# Subclasses of those kinds that describe the agent's own environment.
_INTERNAL_ERRORS: Final = (
    CatalogAddressError,
    SchemaVersionError,
    ForeignStoreError,
    LostIdentityError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreClosedError,
    UploadLostError,
    InconsistentTopicError,
    LogClosedError,
)
# The first matching kind decides.
_CAUSES: Final[tuple[tuple[type[SiltstoneError], str], ...]] = (
    (CatalogUnavailableError, "the catalog does not respond"),
    (StoreUnavailableError, "the object store does not respond"),
    (ReadFailedError, "the records cannot be read at the moment"),
    (LogDirectoryOfflineError, "a disk of the agent has failed"),
    (ProcessLimitError, "the agent has too many files or connections open"),
    (CorruptDataError, "stored data is corrupt"),
    (UnsupportedFormatError, "the agent is too old for a stored file"),
    (RetryableError, "the operation is not possible at the moment"),
)
_FAILED: Final = "the agent has failed"


def is_client_safe(error: SiltstoneError) -> bool:
    """Return True if the message of `error` may be sent to clients."""
    return isinstance(error, _CLIENT_ERRORS) and not isinstance(error, _INTERNAL_ERRORS)


def public_cause(error: SiltstoneError) -> str:
    """Return the cause that a client receives instead of an internal message."""
    return next((cause for kind, cause in _CAUSES if isinstance(error, kind)), _FAILED)


def new_reference(ids: Ids) -> str:
    """Return an identifier that connects a client's error message with the agent's log."""
    return ids.random_bytes(5).hex()


def log_reference_hint(reference: str) -> str:
    """Return the part of an error message that points to the agent's log."""
    return f"the agent's log says why, by reference {reference}"
