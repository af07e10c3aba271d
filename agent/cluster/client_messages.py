"""What clients are told of an error: what is theirs to mend, and no word of what lies behind the agent.

Messages of catalog, object store and disks say where these are: which host, which bucket, which directory.
That is for those who run the agent, and stands in its log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.cluster.errors import AppendFailedError, NotLeaderError, ReadFailedError
from agent.runtime.errors import BusyError, StoppingError
from catalog.errors import (
    CatalogAddressError,
    CatalogInUseError,
    CatalogUnavailableError,
    SchemaVersionError,
)
from core.errors import CorruptDataError, InvalidInputError, RetryableError, SiltstoneError, StaleStateError
from local_tier.errors import InconsistentTopicError, LogClosedError, LogDirectoryOfflineError
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

_THEIRS: Final = (
    InvalidInputError,
    StaleStateError,
    AppendFailedError,
    BusyError,
    StoppingError,
    NotLeaderError,
)
# Of the kinds above, but about what the agent stands on.
_OURS: Final = (
    CatalogAddressError,
    CatalogInUseError,
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
# The first that fits decides.
_PLAIN: Final[tuple[tuple[type[SiltstoneError], str], ...]] = (
    (CatalogUnavailableError, "the catalog does not answer"),
    (StoreUnavailableError, "the object store does not answer"),
    (ReadFailedError, "the records cannot be read now"),
    (LogDirectoryOfflineError, "a disk of the agent has failed"),
    (CorruptDataError, "what was stored is damaged"),
    (RetryableError, "it cannot be done now"),
)
_FAILED: Final = "the agent has failed"


def is_client_safe(error: SiltstoneError) -> bool:
    """Whether the message of `error` is meant for clients."""
    return isinstance(error, _THEIRS) and not isinstance(error, _OURS)


def public_cause(error: SiltstoneError) -> str:
    """What a client is told whom the message of `error` does not concern."""
    return next((words for kind, words in _PLAIN if isinstance(error, kind)), _FAILED)


def new_reference(ids: Ids) -> str:
    """What a client and the agent's log call the same failure."""
    return ids.random_bytes(5).hex()


def log_reference_hint(reference: str) -> str:
    """Tells a client that there is more to know, and those who run the agent how to find it."""
    return f"the agent's log says why, by reference {reference}"
