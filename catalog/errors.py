"""What the catalog refuses or fails to do, each derived from the kind that says what the caller must do.

::

    RetryableError      CatalogUnavailableError
    StaleStateError     SessionFencedError, JobSupersededError, ExtentsUnavailableError,
                        JobInputsChangedError, CommitForgottenError
    InvalidInputError   TopicExistsError, InvalidTopicError, InvalidGroupError, InvalidConfigError,
                        InvalidCommitError, UnstorableValueError, JobOutputError, CatalogAddressError,
                        SchemaVersionError, CatalogInUseError
      NotFoundError     TopicNotFoundError, JobNotFoundError
    FatalError          EmbeddedPostgresError
"""

from __future__ import annotations

from core.errors import FatalError, InvalidInputError, NotFoundError, RetryableError, StaleStateError


class CatalogUnavailableError(RetryableError):
    """The catalog's PostgreSQL did not answer in time; what was asked may have happened or not."""


class SessionFencedError(StaleStateError):
    """The session may no longer commit: it was fenced, has ended or was never registered."""


class JobSupersededError(StaleStateError):
    """Another attempt owns the job, or the job is over: this attempt's files are garbage."""


class ExtentsUnavailableError(StaleStateError):
    """A job names extents that are no longer live or that another job has claimed."""


class JobInputsChangedError(StaleStateError):
    """Inputs of a job went away while it ran: it cannot be swapped in."""


class CommitForgottenError(StaleStateError):
    """A file was committed so long ago that the answer to a retry is no longer kept."""


class TopicExistsError(InvalidInputError):
    """The topic's name is taken, or differs from a taken one only by '.' and '_'."""


class TopicCollisionError(TopicExistsError):
    """The topic's name differs from a taken one only by '.' and '_'."""


class InvalidTopicError(InvalidInputError):
    """A topic's name or its number of partitions is not allowed."""


class InvalidGroupError(InvalidInputError):
    """A group's name is not allowed."""


class UnstorableValueError(InvalidInputError):
    """PostgreSQL cannot keep what was given: text with a NUL, or a name that is too long for an index."""


class InvalidConfigError(InvalidInputError):
    """A topic setting is unknown, or its value is not allowed; `setting` names it."""

    def __init__(self, message: str, *, setting: str, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.setting = setting


class InvalidCommitError(InvalidInputError):
    """A file commit contradicts itself."""


class JobOutputError(InvalidInputError):
    """What an attempt reports does not cover what its job took, or contradicts itself."""


class CatalogAddressError(InvalidInputError):
    """The catalog's connection string cannot be used."""


class SchemaVersionError(InvalidInputError):
    """The database holds a schema that this version of Siltstone cannot work with."""


class CatalogInUseError(InvalidInputError):
    """What was asked may only be done while nothing runs, and somebody was heard of."""


class TopicNotFoundError(NotFoundError):
    """No such topic or partition."""


class JobNotFoundError(NotFoundError):
    """No such job."""


class EmbeddedPostgresError(FatalError):
    """The private PostgreSQL of a data directory cannot be started or stopped."""
