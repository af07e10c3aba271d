"""Notifications within the agent of the ingestion files that it committed.

The write path calls its listeners in commit order. Listeners below it (caches, the hot tail, the topic
directory) see a file only through the protocols of this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from catalog.model import FileCommit, SectionResult, Topic


class AppendedBatches(NamedTuple):
    """Batches of one section in log order, as columns: bytes, first offsets, and numbers of offsets."""

    batches: Sequence[memoryview]
    base_offsets: Sequence[int]
    offset_counts: Sequence[int]


class CommittedSection(Protocol):
    """The batches of one partition in a committed file."""

    @property
    def batches(self) -> Sequence[memoryview]:
        """The bytes of each batch."""
        ...

    def appended(self, result: SectionResult, /) -> AppendedBatches:
        """Return the batches that became part of the log; the catalog may have rejected the others."""
        ...


class CommittedFile(Protocol):
    """A committed ingestion file."""

    @property
    def commit(self) -> FileCommit:
        """The request by which the agent committed the file."""
        ...

    @property
    def sections(self) -> Sequence[CommittedSection]:
        """The sections, in the order of the commit's results."""
        ...

    @property
    def topics(self) -> Mapping[UUID, Topic]:
        """The topics of the sections, as the agent knew them when it validated the batches."""
        ...


class CommitListener(Protocol):
    """A part of the agent that is notified of every committed file, on the event loop."""

    def committed(self, file: CommittedFile, results: Sequence[SectionResult], /) -> None:
        """Handle a committed file; `results` is in the order of its sections. Must not block."""
        ...
