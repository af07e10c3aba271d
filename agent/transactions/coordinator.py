"""The coordinator of transactions: calls of the catalog, and what they change in this agent.

The catalog has the whole state of a transactional id and locks it, so any agent may coordinate any id. This
agent keeps nothing. After the end of a transaction it adds the control batches to its tail, drops cached
bounds, wakes its own readers, and announces the partitions to other agents. It also wakes the leaders of
local partitions, which append the markers to their logs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from agent.read.batch_slicing import render_control_batch
from catalog.errors import CatalogTimeoutError
from catalog.model import PartitionId
from catalog.transactions.repository import EndRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from agent.cluster.catalog_epoch import CatalogEpoch
    from agent.read.hot_tail import HotTail
    from agent.runtime.metrics import AgentMetrics
    from agent.runtime.work_pool import WorkPool
    from catalog.transactions.repository import EndedTransaction
    from catalog.transactions.rules import ProducerIdentity

_log = structlog.get_logger(__name__)
_MAX_ENDS: Final = 64
_MAX_APART: Final = 2
_MAX_SLOW: Final = 1000


class TransactionTable(Protocol):
    """The transactions in the catalog. Every call blocks."""

    def initialize(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None, /
    ) -> EndedTransaction:
        """Return the identity of a new producer, and the partitions of an aborted transaction."""
        ...

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[PartitionId],
        local_partitions: Collection[PartitionId],
        /,
    ) -> None:
        """Add partitions to the producer's transaction; those of local topics are given apart."""
        ...

    def add_group(self, transactional_id: str, producer: ProducerIdentity, group_id: str, /) -> None:
        """Add a group to the producer's transaction."""
        ...

    def end_all(
        self, requests: Sequence[EndRequest], /, *, waits_briefly: bool = False
    ) -> Sequence[EndedTransaction | Exception]:
        """End transactions of different transactional ids together; return the results in this order.

        An exception in the place of a result concerns this transaction alone. CatalogTimeoutError: one of
        them may wait for a lock, or take too long. With `waits_briefly`, a lock is waited for once.
        """
        ...

    def abort_of(self, producer: ProducerIdentity, /) -> EndedTransaction | None:
        """Abort the ongoing transaction of a producer; return None if it has none."""
        ...


class _WaitingEnd(NamedTuple):
    request: EndRequest
    ended: asyncio.Future[EndedTransaction]

    def received(self, result: EndedTransaction | Exception) -> None:
        """Pass the result on, unless the client has gone."""
        if self.ended.done():
            return
        if isinstance(result, Exception):
            self.ended.set_exception(result)
        else:
            self.ended.set_result(result)


class TransactionCoordinator:
    """The coordinator of one agent. Belongs to the event loop.

    Transactions that clients end meanwhile are ended together, up to `_MAX_ENDS` at once. So producers that
    share partitions do not wait for each other's syncs of the database.

    If that takes too long, one of them may wait for a lock, or be very large. They are then ended apart,
    `_MAX_APART` at a time. Those that take too long again are not ended together with others from then on,
    until they have ended in time. Requests of one transactional id that are apart follow each other: a client
    that repeats one would occupy several threads with the same lock.

    A transaction that is apart waits for a lock once only, for about a second. Several of them may be locked
    for long. If each used up the lock limit, those after them would wait for a multiple of it.
    """

    def __init__(
        self,
        table: TransactionTable,
        pool: WorkPool,
        tail: HotTail,
        epoch: CatalogEpoch,
        metrics: AgentMetrics,
        on_change: Iterable[Callable[[Collection[PartitionId]], object]],
        on_pending_markers: Callable[[Collection[int]], object] = lambda _: None,
    ) -> None:
        """Call each of `on_change` with the partitions of a transaction that has ended.

        Call `on_pending_markers` with the nodes that have markers to append to local logs.
        """
        self._on_pending_markers = on_pending_markers
        self._table = table
        self._epoch = epoch
        self._pool = pool
        self._tail = tail
        self._metrics = metrics
        self._on_change = tuple(on_change)
        self._waiting: deque[_WaitingEnd] = deque()
        self._ending: asyncio.Task[None] | None = None
        self._slow: dict[str, None] = {}  # transactional ids, the latest one last
        self._apart: dict[str, deque[_WaitingEnd]] = {}
        self._apart_tasks: set[asyncio.Task[None]] = set()
        self._may_end_apart = asyncio.Semaphore(_MAX_APART)

    async def initialize(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity:
        """Return the identity of a new producer of the id; earlier ones can do nothing any more."""
        call = partial(self._table.initialize, transactional_id, timeout_ms, expected)
        return self._ended(await self._pool.run(call))

    async def abort(self, producer: ProducerIdentity) -> bool:
        """Abort the ongoing transaction of a producer, and fence it; return False if it has none."""
        ended = await self._pool.run(partial(self._table.abort_of, producer))
        if ended is None:
            return False
        self._ended(ended)
        return True

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[PartitionId],
        local_partitions: Collection[PartitionId] = (),
    ) -> None:
        """Add partitions to the producer's transaction; those of local topics are given apart."""
        add = partial(self._table.add_partitions, transactional_id, producer, partitions, local_partitions)
        await self._pool.run(add)

    async def add_group(self, transactional_id: str, producer: ProducerIdentity, group_id: str) -> None:
        """Add a group to the producer's transaction."""
        await self._pool.run(partial(self._table.add_group, transactional_id, producer, group_id))

    async def end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        *,
        commits: bool,
        arrived_at: float,
        bumps_epoch: bool,
    ) -> ProducerIdentity:
        """End the producer's transaction; return its identity from now on.

        `arrived_at` is the monotonic time at which the request arrived at this agent.
        """
        loop = asyncio.get_running_loop()
        request = EndRequest(transactional_id, producer, commits, arrived_at, bumps_epoch)
        waiting = _WaitingEnd(request, loop.create_future())
        if transactional_id in self._slow or transactional_id in self._apart:
            self._begin_apart(waiting)
        else:
            self._waiting.append(waiting)
        if self._waiting and self._ending is None:
            # In a new context, or the first client would be charged for the time of all.
            self._ending = loop.create_task(
                self._end_waiting(), name="ends of transactions", context=Context()
            )
        return (await waiting.ended).producer

    async def _end_waiting(self) -> None:
        try:
            while self._waiting:
                batch = self._next_batch()
                if not batch:
                    break
                for each, result in zip(batch, await self._end_all(batch), strict=True):
                    if isinstance(result, CatalogTimeoutError) and len(batch) > 1:
                        self._begin_apart(each)
                    else:
                        self._received(each, result)
        finally:
            self._ending = None

    def _begin_apart(self, waiting: _WaitingEnd) -> None:
        transactional_id = waiting.request.transactional_id
        if transactional_id in self._apart:
            self._apart[transactional_id].append(waiting)
            return
        self._apart[transactional_id] = deque([waiting])
        task = asyncio.get_running_loop().create_task(
            self._end_apart(transactional_id), name="ends of a transaction", context=Context()
        )
        self._apart_tasks.add(task)
        task.add_done_callback(self._apart_tasks.discard)

    async def _end_apart(self, transactional_id: str) -> None:
        requests = self._apart[transactional_id]
        try:
            while requests:
                async with self._may_end_apart:
                    waiting = requests.popleft()
                    if not waiting.ended.cancelled():
                        (result,) = await self._end_all([waiting], waits_briefly=True)
                        self._received(waiting, result)
        finally:
            del self._apart[transactional_id]

    async def _end_all(
        self, batch: Sequence[_WaitingEnd], *, waits_briefly: bool = False
    ) -> Sequence[EndedTransaction | Exception]:
        """End transactions together; return their results, or the error of all."""
        requests = [each.request for each in batch]
        try:
            return await self._pool.run(partial(self._table.end_all, requests, waits_briefly=waits_briefly))
        except Exception as error:  # noqa: BLE001  # each client receives it
            return [error] * len(batch)

    def _received(self, waiting: _WaitingEnd, result: EndedTransaction | Exception) -> None:
        transactional_id = waiting.request.transactional_id
        was_slow = transactional_id in self._slow
        self._slow.pop(transactional_id, None)
        if isinstance(result, CatalogTimeoutError):
            self._slow[transactional_id] = None
            if len(self._slow) > _MAX_SLOW:
                del self._slow[next(iter(self._slow))]
            if not was_slow:
                _log.warning(
                    "a transaction takes too long to end, and is ended apart from others",
                    transactional_id=transactional_id,
                    reason=str(result),
                )
        elif not isinstance(result, Exception):
            self._has_ended(waiting.request, result)
        waiting.received(result)

    def _has_ended(self, request: EndRequest, ended: EndedTransaction) -> None:
        self._metrics.ended_transactions.labels("committed" if request.commits else "aborted").inc()
        try:
            self._ended(ended)
        except Exception:  # noqa: BLE001  # it has ended, and the clients of the others wait
            _log.exception(
                "readers were not woken after a transaction", transactional_id=request.transactional_id
            )

    def _next_batch(self) -> list[_WaitingEnd]:
        """Return the first of those that wait; empty if their clients have gone.

        Another end of the same transactional id waits for the next batch, and delays no other id.
        """
        batch: dict[str, _WaitingEnd] = {}
        rest: deque[_WaitingEnd] = deque()
        for waiting in self._waiting:
            if len(batch) == _MAX_ENDS or waiting.request.transactional_id in batch:
                rest.append(waiting)
            elif not waiting.ended.cancelled():
                batch[waiting.request.transactional_id] = waiting
        self._waiting = rest
        return list(batch.values())

    def _ended(self, ended: EndedTransaction) -> ProducerIdentity:
        for each in ended.controls:
            # The tail has no batches of a history that has ended, which the current one may lack.
            if each.control is not None and each.leader_epoch == self._epoch.current:
                batch = memoryview(render_control_batch(each, each.control))
                self._tail.append(PartitionId(each.topic_id, each.partition), each.base_offset, batch)
        if ended.controls:
            for change in self._on_change:
                change(ended.partitions)
        if ended.leaders:
            self._on_pending_markers(ended.leaders)
        return ended.producer
