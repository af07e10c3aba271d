"""The errors of the local tier. The base class of each says what the caller must do.

Rejected records raise `object_format.errors.InvalidRecordError`. An offset outside the log raises
`core.errors.OffsetOutOfRangeError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import CorruptDataError, FatalError, InvalidInputError, RetryableError, StaleStateError

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.topic_partition import TopicPartition


class CorruptIndexError(CorruptDataError):
    """An index does not match its segment. It can be rebuilt from the segment."""


class CorruptSnapshotError(CorruptDataError):
    """A producer snapshot cannot be read. Producer state can be rebuilt from the segments."""


class CorruptCheckpointError(CorruptDataError):
    """A checkpoint or metadata file cannot be read."""


class CorruptLogError(CorruptDataError):
    """A segment has bytes that are not a record batch, or segments contradict each other."""


class LegacyFormatError(CorruptDataError):
    """A segment has records of a format before v2, which cannot be read. Nothing was changed."""


class IndexOverflowError(InvalidInputError):
    """An offset cannot be added to an index: it does not increase, or is too far from the base offset."""


class SegmentOffsetOverflowError(FatalError):
    """A segment has offsets that its indexes cannot represent. The segment must be split."""


class LogDirectoryOfflineError(RetryableError):
    """The log directory has failed and is offline until the agent starts again."""


class ProcessLimitError(RetryableError):
    """The process or the machine has no file descriptor or no memory map left.

    Nothing was changed, and no disk has failed.
    """


class LogClosedError(StaleStateError):
    """The log was closed, or is being deleted."""


class InvalidProducerEpochError(InvalidInputError):
    """A producer's epoch is older than the latest known one: a newer instance has fenced it."""


class OutOfOrderSequenceError(InvalidInputError):
    """A producer's sequence number does not follow its previous one.

    `is_behind` is True if the log has passed it, so that no gap is before it.
    """

    def __init__(self, message: str, *, is_behind: bool = False) -> None:
        super().__init__(message)
        self.is_behind = is_behind


class OffsetsOutOfOrderError(InvalidInputError):
    """Offsets of replicated batches do not increase, or start below the log end offset."""


class InvalidTransactionError(InvalidInputError):
    """A batch or a marker does not match the state of its producer's transaction."""


class InconsistentTopicError(StaleStateError):
    """A partition directory belongs to an older topic of the same name."""


class CleaningAbortedError(StaleStateError):
    """Another operation needs the log. The log is cleaned later."""


class CleanerStoppedError(StaleStateError):
    """The cleaner is shutting down."""


class CleaningFailedError(FatalError):
    """Cleaning a log failed for an unexpected reason. The log is not cleaned again until a restart."""

    def __init__(self, message: str, *, directory: Path, topic_partition: TopicPartition) -> None:
        super().__init__(message, remedy="see the error logged with this one; a restart tries again")
        self.directory = directory
        self.topic_partition = topic_partition
