"""Commits of files whose sections are in several shards.

Each shard has a queue, in which one thread commits the parts of files in the order of their submission. A
part has the sections of one shard. Its commit is today's commit of a file: one transaction, idempotent by
file id. The parts of a file are committed in parallel, and a shard that is away delays its own queue only.
The queue repeats a commit before it begins the next one, so that a producer's batches keep their order.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import structlog

from catalog.errors import InvalidCommitError
from core.errors import RetryableError
from core.outage import Outage
from prototypes.sharded_catalog.names import parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future
    from uuid import UUID

    from agent.cluster.commits import CommitListener, CommittedFile, CommittedSection
    from catalog.model import FileCommit, PartitionId, SectionResult, Topic
    from core.clock import Clock
    from core.ids import Ids
    from prototypes.sharded_catalog.shards import Shard, Shards

    Results = tuple[SectionResult, ...]

_log = structlog.get_logger(__name__)


class PartialCommitError(RetryableError):
    """Some shards did not commit their parts; `results` has those of the others, by shard number.

    The caller repeats the commit, which returns the stored results where it succeeded, or gives the missing
    parts up.
    """

    def __init__(
        self, commit: FileCommit, results: Mapping[int, Results], failures: Mapping[int, BaseException]
    ) -> None:
        reasons = "; ".join(f"shard {number}: {error}" for number, error in sorted(failures.items()))
        super().__init__(
            f"file {commit.file_id} was not committed in all of its shards: {reasons}",
            remedy="commit it again, or give the missing parts up",
            retry_after_seconds=1.0,
        )
        self.results = results
        self.failures = failures


@dataclass(frozen=True, slots=True)
class FilePart:
    """Sections of a file that are in one shard; `indexes` are their positions in the file.

    For the listeners, a part is a committed file.
    """

    shard: Shard
    commit: FileCommit
    sections: Sequence[CommittedSection]
    indexes: tuple[int, ...]
    topics: Mapping[UUID, Topic] = field(default_factory=dict)


class SubmittedFile:
    """Commits of a file's parts, some of which may be running."""

    def __init__(self, commit: FileCommit, parts: Sequence[tuple[FilePart, Future[Results]]]) -> None:
        self._commit = commit
        self._parts = parts

    def part(self, shard: int) -> Future[Results]:
        """Return the commit of the part in a shard: its producers can be acknowledged when it is done."""
        (found,) = (future for part, future in self._parts if part.shard.number == shard)
        return found

    def results(self) -> Results:
        """Wait for all parts; return the results in the order of the file's sections.

        PartialCommitError: some parts were not committed.
        """
        wait([future for _, future in self._parts])
        failures, results = {}, {}
        by_index: dict[int, SectionResult] = {}
        for part, future in self._parts:
            error = future.exception()
            if error is not None:
                failures[part.shard.number] = error
                continue
            results[part.shard.number] = future.result()
            by_index.update(zip(part.indexes, future.result(), strict=True))
        if failures:
            raise PartialCommitError(self._commit, results, failures)
        return tuple(by_index[index] for index in range(len(by_index)))


class ShardedCommits:
    """Commits to all shards; thread-safe. The caller closes it.

    A part is retried for `retry_seconds`, and then fails its own producers only. Listeners are called by the
    thread of the shard, in commit order of that shard, with the parts.
    """

    def __init__(
        self,
        shards: Shards,
        clock: Clock,
        ids: Ids,
        *,
        retry_seconds: float,
        listeners: Sequence[CommitListener] = (),
    ) -> None:
        self._shards = shards
        self._clock = clock
        self._ids = ids
        self._retry_seconds = retry_seconds
        self._listeners = tuple(listeners)
        self._lock = threading.Lock()
        self._queues = {
            shard.number: ThreadPoolExecutor(1, thread_name_prefix=f"shard-{shard.number}")
            for shard in shards
        }

    def commit(self, commit: FileCommit) -> Results:
        """Commit an uploaded file in all its shards; return the results in the order of its sections.

        The call may be repeated until it returns: no part is committed twice. PartialCommitError: some
        shards did not commit their parts.
        """
        return self.submit(commit).results()

    def submit(self, commit: FileCommit, file: CommittedFile | None = None) -> SubmittedFile:
        """Queue the parts of an uploaded file, whose batches `file` has, and do not wait.

        The order of the calls is the order of commits in each shard.
        """
        parts = self.parts_of(commit, () if file is None else file.sections)
        with self._lock:  # all queues have the same order
            queued = [
                (part, self._queues[part.shard.number].submit(partial(self._commit_part, part)))
                for part in parts
            ]
        return SubmittedFile(commit, queued)

    def give_up(self, commit: FileCommit, shard: int) -> Future[bool]:
        """Queue the end of a part that its agent commits no more; a part that was committed stays."""
        void = partial(
            self._shards[shard].void, commit.file_id, commit.object_name, commit.size, commit.session_id
        )
        with self._lock:
            return self._queues[shard].submit(void)

    def announce(self, partitions: Iterable[PartitionId], origin: UUID) -> int:
        """Notify the watchers of each shard of its partitions; return the bytes of the notifications."""

        def number(partition: PartitionId) -> int:
            return self._shards.shard_of(partition.topic_id).number

        return sum(
            self._shards[shard].catalog.commits.announce(list(group), origin)
            for shard, group in groupby(sorted(partitions, key=number), key=number)
        )

    def parts_of(self, commit: FileCommit, sections: Sequence[CommittedSection] = ()) -> tuple[FilePart, ...]:
        """Split a file by shard; InvalidCommitError if its name has other shards."""
        indexes: dict[int, list[int]] = {}
        for index, section in enumerate(commit.sections):
            indexes.setdefault(self._shards.shard_of(section.topic_id).number, []).append(index)
        named = parse(commit.object_name)
        if named is None or named.shards != indexes.keys():
            raise InvalidCommitError(
                f"file {commit.file_id} has sections in the shards {sorted(indexes)}, "
                f"which its name {commit.object_name!r} does not say",
                remedy="name a file by all shards of its sections, and no others",
            )
        return tuple(
            FilePart(
                self._shards[shard],
                replace(commit, sections=tuple(commit.sections[index] for index in chosen)),
                tuple(sections[index] for index in chosen) if sections else (),
                tuple(chosen),
            )
            for shard, chosen in sorted(indexes.items())
        )

    def _commit_part(self, part: FilePart) -> Results:
        outage = Outage(f"commits to shard {part.shard.number}", clock=self._clock, ids=self._ids)
        while True:
            try:
                results = part.shard.catalog.commits.commit(part.commit)
            except RetryableError as error:
                pause = outage.failed(error)
                if outage.seconds + pause > self._retry_seconds:
                    raise
            else:
                outage.succeeded()
                self._notify(part, results)
                return results
            self._clock.sleep(pause)

    def _notify(self, part: FilePart, results: Results) -> None:
        for listener in self._listeners:
            try:
                listener.committed(part, results)
            except Exception:  # noqa: BLE001  # the part is committed
                _log.exception("a listener failed on a committed part", listener=type(listener).__name__)

    def close(self) -> None:
        """Complete the queued commits, and end the threads."""
        for queue in self._queues.values():
            queue.shutdown()
