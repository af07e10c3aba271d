"""Errors of the catalog. The base class of each says what the caller must do.

::

    RetryableError      CatalogUnavailableError, JobVersionError, EarlierAgentsError
      CatalogUnavailableError  CatalogTimeoutError
    StaleStateError     SessionFencedError, JobSupersededError, ExtentsUnavailableError,
                        JobInputsChangedError, CommitResultExpiredError, TransactionRefusedError
      SessionFencedError  CatalogReplacedError
    InvalidInputError   TopicExistsError, InvalidTopicError, InvalidGroupError, InvalidConfigError,
                        InvalidAclError, InvalidCommitError, InvalidCredentialError, UnstorableValueError,
                        JobOutputError, CatalogAddressError, SchemaVersionError, MissingTopicsError
      NotFoundError     TopicNotFoundError, JobNotFoundError
    FatalError          EmbeddedPostgresError, MigrationError
"""

from __future__ import annotations

from enum import StrEnum

from core.errors import FatalError, InvalidInputError, NotFoundError, RetryableError, StaleStateError


class CatalogUnavailableError(RetryableError):
    """PostgreSQL did not respond in time; the operation may have happened or not."""


class CatalogTimeoutError(CatalogUnavailableError):
    """PostgreSQL responds, but ended the operation, which waited for a lock or took too long."""


class JobVersionError(RetryableError):
    """Another version of Siltstone planned the job; a process of that version may run it."""


class EarlierAgentsError(RetryableError):
    """Agents of a release without transactions still run; nothing happened."""


class UnsafeCommitsError(CatalogUnavailableError):
    """The server acknowledges commits that a crash or a failover may lose; nothing happened."""


class SessionFencedError(StaleStateError):
    """The session may not commit: it was fenced, has ended, or was never registered."""


class CatalogReplacedError(SessionFencedError):
    """The server continues on another history of commits: no session may commit until it registers again."""


class JobSupersededError(StaleStateError):
    """Another attempt owns the job, or the job has finished: this attempt's files are garbage."""


class ExtentsUnavailableError(StaleStateError):
    """A job names extents that are no longer live or that another job has claimed."""


class JobInputsChangedError(StaleStateError):
    """Inputs of a job were removed while it ran, so its outputs cannot be published."""


class CommitResultExpiredError(StaleStateError):
    """A file was committed so long ago that its results are no longer stored for a retry."""


class TransactionRefusal(StrEnum):
    """Reason why a request of a transactional producer was refused; Kafka's error of the same name."""

    INVALID_PRODUCER_ID_MAPPING = "invalid_producer_id_mapping"
    PRODUCER_FENCED = "producer_fenced"
    INVALID_TXN_STATE = "invalid_txn_state"
    CONCURRENT_TRANSACTIONS = "concurrent_transactions"


class TransactionRefusedError(StaleStateError):
    """The producer is not the current one of its transactional id, or has no transaction that allows this.

    CONCURRENT_TRANSACTIONS: its last transaction is not complete yet, or the request to end the
    transaction arrived before it began. The request may be repeated.
    """

    def __init__(self, refusal: TransactionRefusal, message: str) -> None:
        retries = refusal is TransactionRefusal.CONCURRENT_TRANSACTIONS
        super().__init__(message, remedy="retry" if retries else "initialize the producer again")
        self.refusal = refusal


class TopicExistsError(InvalidInputError):
    """The topic's name is taken, or collides with a taken name."""


class TopicCollisionError(TopicExistsError):
    """The topic's name differs from a taken one only by '.' and '_'."""


class InvalidTopicError(InvalidInputError):
    """A topic's name or number of partitions is invalid."""


class InvalidGroupError(InvalidInputError):
    """A group's name is invalid."""


class InvalidAclError(InvalidInputError):
    """An ACL contradicts itself or cannot be stored."""


class UnstorableValueError(InvalidInputError):
    """PostgreSQL cannot store an argument: text with a NUL, or a name that is too long for an index."""


class InvalidConfigError(InvalidInputError):
    """A setting is unknown or its value is invalid; `setting` is its name."""

    def __init__(self, message: str, *, setting: str, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.setting = setting


class InvalidCredentialError(InvalidInputError):
    """A user's name, or the credential for it, is unacceptable; the message shows no part of a secret."""


class InvalidQuotaError(InvalidInputError):
    """A quota, or the entity that is to have it, is invalid."""


class InvalidCommitError(InvalidInputError):
    """A file commit contradicts itself."""


class MissingTopicsError(InvalidInputError):
    """A lost file has records of topics or partitions that the catalog lacks; it was not committed."""


class JobOutputError(InvalidInputError):
    """The outputs of an attempt contradict each other or do not cover the job's inputs."""


class CatalogAddressError(InvalidInputError):
    """The catalog's connection string is unusable."""


class SchemaVersionError(InvalidInputError):
    """The database has a schema that this version of Siltstone does not support."""


class TopicNotFoundError(NotFoundError):
    """The topic or partition does not exist."""


class JobNotFoundError(NotFoundError):
    """The job does not exist."""


class EmbeddedPostgresError(FatalError):
    """The embedded PostgreSQL of a data directory cannot be started or stopped."""


class MigrationError(FatalError):
    """A migration of the schema cannot be completed; it was rolled back."""
