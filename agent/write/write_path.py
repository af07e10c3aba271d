"""The write path: from validated batches to acknowledged offsets.

A file passes through these steps:

1. `append` adds batches to the open file. All batches of a call fit into the memory budget, or none is taken.
2. The open file is closed `flush_interval_ms` after its first append, or when it reaches `flush_bytes`. It is
   closed early when waiting gains nothing, because its producers wait for responses instead of sending more
   (`core.early_close`). While `max_files_in_flight` files are not committed, the open file stays open and
   grows: a slow store makes files larger, not more numerous.
3. Closed files are sealed (laid out) and uploaded by one PUT each, in one call of the uploads pool. Several
   files are uploaded at a time.
4. Files are committed in the order in which they were closed. Batches that a producer sent in order
   therefore have their offsets in order. Uploaded files that wait for a commit share one transaction
   (`agent.write.commit_groups`). If that fails, they are committed one by one. A commit is idempotent by
   file, so that a lost response does no harm.
5. After the commit, the appends are completed and the listeners are notified.

A file that cannot be uploaded or committed in `write_attempts` attempts fails only its own appends. Later
files continue. The catalog then rejects later batches of the same idempotent producer as out of order, even
if the producer is new (`catalog.commit`). They get a retriable error (`FailedProducers`).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import replace
from functools import partial
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Protocol, TypeAlias

import structlog

from agent.cluster.client_messages import log_reference_hint, new_reference
from agent.cluster.errors import AppendFailedError
from agent.runtime.byte_budget import ByteBudget
from agent.runtime.errors import BusyError, StoppingError
from agent.runtime.health import start_essential_task
from agent.write.commit_groups import Flight, FlightQueue
from agent.write.ingestion_buffer import IngestionBuffer, OpenFile
from agent.write.ingestion_file import SealedFile, complete_appends, seal
from agent.write.pending_append import AppendResult, PendingAppend
from catalog.errors import SessionFencedError
from core.early_close import EarlyCloseLimits, EarlyCloseRule
from core.errors import RetryableError, SiltstoneError, StaleStateError
from object_store.accounting import Purpose

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from agent.cluster.catalog_epoch import CatalogEpoch
    from agent.cluster.commits import CommitListener
    from agent.cluster.session import Session
    from agent.runtime.health import CallHealth
    from agent.runtime.metrics import AgentMetrics
    from agent.runtime.pools import Pools
    from agent.runtime.retry import RetryPolicy
    from agent.settings import AgentSettings
    from agent.write.failed_producers import FailedProducers
    from agent.write.validation import ValidatedAppend
    from catalog.model import FileCommit, ProducerStamp, SectionResult
    from core.clock import Clock
    from core.ids import Ids
    from object_store.interface import ObjectStore

_log = structlog.get_logger(__name__)


def _early_close_limits(settings: AgentSettings, store: ObjectStore) -> EarlyCloseLimits:
    """Return the limits for a store. A local directory charges no requests."""
    return EarlyCloseLimits(
        min_bytes=settings.early_close_bytes,
        overlap_bytes=settings.stalled_flush_bytes,
        max_files=max(1, settings.max_files_in_flight // 2),  # the others are for full files
        min_idle_seconds=settings.early_close_idle_ms / 1000,
        max_idle_seconds=settings.flush_interval_ms / 1000,
        puts_per_second=settings.early_puts_per_second,
        puts_per_gb=math.inf if store.url.startswith("file:") else settings.early_puts_per_gb,
    )


def _stamp_of(appends: Sequence[ValidatedAppend]) -> ProducerStamp | None:
    """Return the idempotent producer of a request, if it has one."""
    return appends[0].stamp if appends else None


_Outcome: TypeAlias = "tuple[SectionResult, ...] | RetryableError | None"
"""The results of a file in a common commit, or the error of that commit; None: commit the file alone."""


class CommitLog(Protocol):
    """The operations of the catalog that the write path needs. Repeated calls have no further effect."""

    def commit(self, commit: FileCommit, /) -> tuple[SectionResult, ...]:
        """Make an uploaded file part of the log."""
        ...

    def commit_together(self, commits: Sequence[FileCommit], /) -> Sequence[tuple[SectionResult, ...]]:
        """Make uploaded files of one session part of the log in their order, all or none."""
        ...


class WritePath:
    """The appends of one agent. Belongs to the event loop. Call `start` first and `stop` last."""

    def __init__(
        self,
        *,
        settings: AgentSettings,
        store: ObjectStore,
        log: CommitLog,
        session: Session,
        pools: Pools,
        retry: RetryPolicy,
        clock: Clock,
        ids: Ids,
        metrics: AgentMetrics,
        store_health: CallHealth,
        epoch: CatalogEpoch,
        failed_producers: FailedProducers,
        listeners: Sequence[CommitListener] = (),
    ) -> None:
        self._settings = settings
        self._store = store
        self._log = log
        self._session = session
        self._pools = pools
        self._retry = retry
        self._clock = clock
        self._ids = ids
        self._metrics = metrics
        self._store_health = store_health
        self._epoch = epoch
        self._listeners = tuple(listeners)
        self.early_close = EarlyCloseRule(_early_close_limits(settings, store), clock.monotonic())
        self.budget = ByteBudget(
            "the write buffer",
            settings.max_buffered_bytes,
            retry_after_seconds=max(1.0, settings.flush_interval_ms / 1000),
        )
        self._failed = failed_producers
        self._buffer = IngestionBuffer(settings.flush_bytes)
        self._closed: deque[OpenFile] = deque()
        self._flights = FlightQueue()  # at most max_files_in_flight entries
        self._in_flight = 0
        self._due: OpenFile | None = None  # the file to close next, if it is still open
        self._timer_file: OpenFile | None = None  # the file of the timer
        self._timer: asyncio.TimerHandle | None = None
        self._early_timer: asyncio.TimerHandle | None = None
        self._early_timer_ends = 0.0  # uvloop's handle does not know it if the time is near
        self._draining = False
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._uploads: set[asyncio.Task[SealedFile]] = set()
        self._committer: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to commit files."""
        self._committer = start_essential_task(self._commit_in_order(), name="commits")

    async def append(self, appends: Sequence[ValidatedAppend]) -> list[list[AppendResult]]:
        """Append to one or more partitions, wait for the commit, and return the results per append and batch.

        Raises `BusyError` if the buffer has no space for all appends, and `StoppingError` while the agent
        stops. In both cases no batch was accepted. If the caller is cancelled while it waits, the batches are
        committed nevertheless.
        """
        return [await pending.wait() for pending in self.enqueue(appends)]

    def enqueue(self, appends: Sequence[ValidatedAppend]) -> list[PendingAppend]:
        """Do the same as `append` without waiting.

        The order of the calls is the order in each partition's log.
        """
        size = self._reserve(appends)
        waiting = [PendingAppend(len(validated.batches)) for validated in appends]
        self._add(appends, size, zip(waiting, repeat(0)))
        return waiting

    def enqueue_together(self, appends: Sequence[ValidatedAppend]) -> PendingAppend:
        """Do the same as `enqueue`, with one pending result for the batches of all appends, in order."""
        size = self._reserve(appends)
        counts = [len(validated.batches) for validated in appends]
        pending = PendingAppend(sum(counts))
        if self._buffer.add_all(appends, size, pending):
            self._added(appends, size, [self._buffer.open])
        else:
            self._add(appends, size, zip(repeat(pending), accumulate(counts, initial=0)))
        return pending

    def _reserve(self, appends: Sequence[ValidatedAppend]) -> int:
        """Reserve memory for all appends, and return how much."""
        if self._stopping:
            raise StoppingError(
                "this agent is stopping", remedy="send the request to another agent", retry_after_seconds=1.0
            )
        size = sum([len(validated.data) for validated in appends])
        try:
            self.budget.reserve(size)
        except BusyError:
            if (stamp := _stamp_of(appends)) is not None:
                self._failed.note([stamp.identity])
            raise
        return size

    def _add(
        self,
        appends: Sequence[ValidatedAppend],
        size: int,
        targets: Iterable[tuple[PendingAppend, int]],
    ) -> None:
        """Put the appends into the open file and as many further files as they fill."""
        files = [self._buffer.open]
        for validated, (pending, first_batch) in zip(appends, targets, strict=False):
            full = self._buffer.add(validated, pending, first_batch)
            if full:
                self._closed.extend(full)
                for each in full:
                    self.early_close.closed(each.size)
                files += [*full[1:], self._buffer.open]
        if not files[-1].size:
            files.pop()
        self._added(appends, size, files)

    def _added(self, appends: Sequence[ValidatedAppend], size: int, files: Sequence[OpenFile]) -> None:
        """Record that a request of `size` bytes went to `files`; the last one has its last batch."""
        stamp = _stamp_of(appends)
        if files:
            now = asyncio.get_running_loop().time()
            files[-1].appended_at.append(now)
            for file in files:
                file.opened_at = file.opened_at or now
                if stamp is not None:
                    file.note_producer(stamp)
            if stamp is not None:
                files[-1].requests[stamp.producer_id] += 1
        if size:
            self.early_close.arrived(
                self._clock.monotonic(),
                self._buffer.open.size,
                size,
                None if stamp is None else stamp.producer_id,
                is_transactional=stamp is not None and stamp.is_transactional,
            )
        self._idle.clear()
        self._schedule()

    @property
    def is_running(self) -> bool:
        """Return True if the task that commits files runs."""
        return self._committer is not None and not self._committer.done()

    @property
    def files_in_flight(self) -> int:
        """Files that are closed and not committed yet."""
        return self._in_flight + len(self._closed)

    def flush(self) -> None:
        """Close the open file now, as at the end of the flush interval."""
        self._due = self._buffer.open
        self._schedule()

    def drain(self) -> None:
        """Close each file at once from now on, so that pending appends are completed soon."""
        self._draining = True
        self._schedule()

    async def stop(self) -> None:
        """Accept nothing new, and complete every append that was taken."""
        self._stopping = True
        self.drain()
        await self._idle.wait()
        await self.abandon()

    async def abandon(self) -> None:
        """Cancel everything that is not committed, without further retries."""
        self._stopping = True
        tasks = [self._committer, *self._uploads]
        self._committer = None
        if self._early_timer is not None:
            self._early_timer.cancel()
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _schedule(self) -> None:
        """Start the uploads that are possible now, and the timer of the open file."""
        while self._in_flight < self._settings.max_files_in_flight and (file := self._next_file()):
            self._launch(file)
        self._set_timer()
        if self._in_flight == 0 and not self._closed and not self._buffer.open.size:
            self._idle.set()

    def _next_file(self) -> OpenFile | None:
        if self._closed:
            file = self._closed.popleft()
        elif self._buffer.open.size and (reason := self._reason_to_close()):
            file = self._buffer.take()
            file.reason = reason
            self.early_close.closed(file.size)
        else:
            return None
        if self._due is file:
            self._due = None  # keep no reference to it
        return file

    def _reason_to_close(self) -> str:
        """Return why the open file is to be closed now; empty: it is not."""
        if self._draining:
            return "stop"
        if self._due is self._buffer.open:
            return "interval"
        now = self._clock.monotonic()
        if self.early_close.take(now, self._in_flight):
            return "stalled" if self.early_close.has_stalled_producers() else "idle"
        due = self.early_close.due_at(now, self._in_flight)
        if due is not None:
            self._set_early_timer(due - now)
        return ""

    def _set_early_timer(self, seconds: float) -> None:
        """Check the open file again after so many seconds at the latest.

        Arrivals usually postpone the close, so a timer that ends earlier stays and checks again.
        """
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._early_timer is not None:
            if self._early_timer_ends <= at:
                return
            self._early_timer.cancel()  # a file before this one set it, or its producers were slower
        self._early_timer_ends = at
        self._early_timer = loop.call_at(at, self._early_timer_ended)

    def _early_timer_ended(self) -> None:
        self._early_timer = None
        self._schedule()

    def _set_timer(self) -> None:
        file = self._buffer.open
        if self._timer is not None and (self._timer_file is not file or self._draining):
            self._timer.cancel()
            self._timer = self._timer_file = None
        if file.size and self._timer_file is not file and not self._draining:
            self._timer_file = file
            delay = self._settings.flush_interval_ms / 1000
            self._timer = asyncio.get_running_loop().call_later(delay, self._flush_interval_ended, file)

    def _flush_interval_ended(self, file: OpenFile) -> None:
        self._due = file
        self._schedule()

    def _launch(self, file: OpenFile) -> None:
        self._in_flight += 1
        self._metrics.files_closed.labels(file.reason).inc()
        self._metrics.buffer_seconds.observe(asyncio.get_running_loop().time() - file.opened_at)
        upload = asyncio.get_running_loop().create_task(self._upload(file), name="upload")
        self._uploads.add(upload)
        upload.add_done_callback(self._uploads.discard)
        self._flights.put(Flight(file, upload))

    async def _upload(self, file: OpenFile) -> SealedFile:
        layout = partial(
            seal,
            file,
            file_id=self._ids.new_uuid(),
            session_id=self._session.session_id,
            created_ms=self._clock.now_ms(),
        )
        sealed: SealedFile | None = None
        sealed_at = 0.0

        def seal_and_put() -> SealedFile:
            # One call of a thread for both: each return to the event loop costs a small file its wake-ups.
            nonlocal sealed, sealed_at
            if sealed is None:
                sealed = layout()
                sealed_at = self._clock.monotonic()
            self._store.put(sealed.object_name, sealed.body, purpose=Purpose.INGEST)
            return sealed

        try:
            uploaded = await self._retry.run(lambda: self._pools.uploads.run(seal_and_put))
        finally:
            if sealed_at:  # also after a failure: a store that does not respond must be visible
                seconds = self._clock.monotonic() - sealed_at
                self._metrics.put_seconds.observe(seconds)
                self.early_close.uploaded(seconds)
        self._store_health.succeeded()
        self._metrics.ingestion_file_bytes.observe(uploaded.size)
        return uploaded

    async def _commit_in_order(self) -> None:
        while True:
            group = await self._flights.next_group()
            outcomes = await self._commit_together(group)
            while group:
                # Keep no reference: the producers' buffers are released before the wait for the next file.
                await self._finish(group.popleft(), outcomes.popleft())
                if group:
                    await asyncio.sleep(0)  # the responses to this file's producers come first

    async def _commit_together(self, group: Collection[Flight]) -> deque[_Outcome]:
        """Commit the files of a group; return the outcome of each: None if it is to be committed alone."""
        alone: deque[_Outcome] = deque([None] * len(group))
        if len(group) == 1:
            return alone
        commits = [self._commit_of(flight, flight.upload.result()) for flight in group]
        begun_at = self._clock.monotonic()
        commit = partial(self._log.commit_together, commits)
        try:
            results = await self._retry.run(lambda: self._pools.commits.run(commit))
        except RetryableError as error:
            outcomes: deque[_Outcome] = deque([error] * len(group))
        except Exception as error:  # noqa: BLE001  # the file that causes it fails alone
            _log.warning("files are committed one by one", files=len(group), error=str(error))
            return alone
        else:
            outcomes = deque(results)
        seconds = self._clock.monotonic() - begun_at
        for _ in group:
            self._metrics.commit_seconds.observe(seconds)
            self.early_close.committed(seconds / len(group))
        return outcomes

    async def _finish(self, flight: Flight, outcome: _Outcome) -> None:
        """Complete the appends of a file; commit it first, unless it has an outcome."""
        try:
            sealed = await flight.upload
        except Exception as error:  # noqa: BLE001  # producers must get a result after any failure
            self._fail(flight, error, "the records were not committed")
        else:
            if isinstance(outcome, RetryableError):
                self._fail(flight, outcome, "it is unknown whether the records were committed")
            elif await self._commit_and_complete(flight, sealed, outcome):
                now = asyncio.get_running_loop().time()
                self._metrics.append_seconds.observe_all([now - at for at in flight.file.appended_at])
            del sealed
        self._in_flight -= 1
        self.budget.release(flight.file.size)
        self.early_close.acknowledged(self._clock.monotonic(), flight.file.size, flight.file.requests)
        self._schedule()

    async def _commit_and_complete(
        self, flight: Flight, sealed: SealedFile, results: tuple[SectionResult, ...] | None
    ) -> bool:
        """Commit a file that has no results yet, and complete its appends; return True if it is committed."""
        try:
            found = await self._commit(flight, sealed) if results is None else results
            judged = self._failed.judge(sealed.commit, found)
            self._check_epoch(judged)
            complete_appends(sealed, judged)
        except SessionFencedError as error:
            self._fail(flight, error, "the records were not committed")
        except Exception as error:  # noqa: BLE001  # the commit may have succeeded
            self._fail(flight, error, "it is unknown whether the records were committed")
        else:
            self._notify(sealed, judged)
            return True
        return False

    def _check_epoch(self, results: Sequence[SectionResult]) -> None:
        """Raise StaleStateError for a commit of an epoch that has ended: the new one may lack it.

        The agent has compared its acknowledged commits with the catalog already, so it acknowledges no other.
        """
        epoch = max((result.leader_epoch for result in results), default=-1)
        if 0 <= epoch < self._epoch.current:
            raise StaleStateError(
                f"the records were committed in epoch {epoch}, and epoch {self._epoch.current} has begun",
                remedy="send them again",
            )

    def _commit_of(self, flight: Flight, sealed: SealedFile) -> FileCommit:
        return replace(sealed.commit, failed_producers=self._failed.among(flight.file.producers))

    async def _commit(self, flight: Flight, sealed: SealedFile) -> tuple[SectionResult, ...]:
        commit = partial(self._log.commit, self._commit_of(flight, sealed))
        begun_at = self._clock.monotonic()
        try:
            return await self._retry.run(lambda: self._pools.commits.run(commit))
        except SessionFencedError:
            self._session.report_fenced(sealed.commit.session_id)
            raise
        finally:
            seconds = self._clock.monotonic() - begun_at
            self._metrics.commit_seconds.observe(seconds)
            self.early_close.committed(seconds)

    def _fail(self, flight: Flight, error: Exception, what: str) -> None:
        self._metrics.files_failed.inc()
        reason = error.message if isinstance(error, SiltstoneError) else type(error).__name__
        reference = new_reference(self._ids)
        _log.error(
            "an ingestion file failed",
            reference=reference,
            what=what,
            reason=reason,
            bytes=flight.file.size,
            exc_info=None if isinstance(error, RetryableError | StaleStateError) else error,
        )
        failure = AppendFailedError(
            f"{what}; {log_reference_hint(reference)}", remedy="retry them", retry_after_seconds=1.0
        )
        failure.__cause__ = error
        self._failed.note(flight.file.producers)
        flight.file.fail(failure)

    def _notify(self, sealed: SealedFile, results: Sequence[SectionResult]) -> None:
        for listener in self._listeners:
            try:
                listener.committed(sealed, results)
            except Exception:  # noqa: BLE001  # a failing listener must not affect the others or the next commit
                _log.exception("a listener failed on a committed file", listener=type(listener).__name__)
