"""The local tier's own errors, each under the kind that says what to do.

Rejected records are `object_format.errors.InvalidRecordError`; an offset outside the log is
`core.errors.OffsetOutOfRangeError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import CorruptDataError, FatalError, InvalidInputError, RetryableError, StaleStateError

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.topic_partition import TopicPartition


class CorruptIndexError(CorruptDataError):
    """An index does not fit its segment; it can be built anew from the segment."""


class CorruptSnapshotError(CorruptDataError):
    """A producer snapshot cannot be read; the state can be built anew from the segments."""


class CorruptCheckpointError(CorruptDataError):
    """A checkpoint file is not what was written."""


class CorruptLogError(CorruptDataError):
    """Segments contradict each other, or batches of a log their place in it."""


class IndexOverflowError(InvalidInputError):
    """An index was asked to hold an offset that does not rise, or that is too far from its segment's base."""


class SegmentOffsetOverflowError(FatalError):
    """A segment has offsets that its indexes cannot hold: it must be split."""


class LogDirectoryOfflineError(RetryableError):
    """The directory of a log has failed, and is offline until the agent starts again."""


class LogClosedError(StaleStateError):
    """The log was closed, or is on its way to be deleted."""


class InvalidProducerEpochError(InvalidInputError):
    """A producer's epoch is older than one that was seen: another instance has taken its place."""


class OutOfOrderSequenceError(InvalidInputError):
    """A producer's sequence number does not follow the last one."""


class OffsetsOutOfOrderError(InvalidInputError):
    """Batches that come with their offsets do not begin at or behind the log end offset, or do not rise."""


class InvalidTransactionError(InvalidInputError):
    """A batch or a marker does not fit the state of its producer's transaction."""


class InconsistentTopicError(StaleStateError):
    """A log's directory belongs to another topic, that had the same name."""


class CleaningAbortedError(StaleStateError):
    """Somebody else needs the log; it is cleaned again later."""


class CleanerStoppedError(StaleStateError):
    """The cleaner is on its way out."""


class CleaningFailedError(FatalError):
    """A clean failed for no known reason, and would again; `log` is left alone from now on."""

    def __init__(self, message: str, *, directory: Path, topic_partition: TopicPartition) -> None:
        super().__init__(message, remedy="look for what was logged with it; a restart tries once more")
        self.directory = directory
        self.topic_partition = topic_partition
