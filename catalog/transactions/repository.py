"""Changes of transactions in the catalog.

A transaction begins when a producer adds a partition or a group to it. It ends in one transaction of the
database, of three statements for any number of partitions:

1. Lock the transactional id; several of them in the order of their producer ids, as commits do. Commits of
   the producer's files lock it, too. So no commit is under way now, and a later one finds another state and
   is refused.
2. Lock the partitions in (topic id, partition) order.
3. Write the control batches, aborted offsets, last stable offsets, group offsets and the state.

If the transaction has partitions of local topics, another statement leaves a pending marker in each
(`local_partitions.py`).

Each call is idempotent, as far as Kafka's protocol allows a retry. Locks are taken in this order:
transactional id, partitions, groups.
"""

from __future__ import annotations

from dataclasses import replace
from math import floor
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.errors import EarlierAgentsError, TransactionRefusal, TransactionRefusedError
from catalog.groups.offsets import CommitOutcome, OffsetCommit
from catalog.lifecycle.incarnation import replaced_error
from catalog.model import ControlBatch, PartitionId
from catalog.rows import control_extent
from catalog.transactions.lookups import producer_of
from catalog.transactions.rules import (
    Ending,
    ProducerIdentity,
    TransactionalProducer,
    TransactionState,
    begin,
    end,
    fence,
    initialize,
    interrupt,
    needs_producer_id,
    require_current,
    unknown_producer,
)
from core.errors import RetryableError, StaleStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from uuid import UUID

    from psycopg import Cursor

    from catalog.database.connection import TupleRow
    from catalog.database.pool import Database, Transaction
    from catalog.groups.offsets import CommittedOffset
    from catalog.lifecycle.incarnation import Incarnations
    from catalog.model import Extent

    Rows = Cursor[TupleRow]

_log = structlog.get_logger(__name__)
_SQL = load_queries("transactions")
_PRODUCER_SQL = load_queries("producers")
_LOCAL_SQL = load_queries("local_transactions")
_KNOWS_TRANSACTIONS: Final = 35
"""The oldest schema version whose agents and planners respect transactions, those in local topics, too."""
_MAX_READINGS: Final = 3
"""Readings of the server's clock after the first one. Each takes a round trip."""
_CATALOG_ERRORS: Final = (RetryableError, StaleStateError)
"""Errors of the catalog as a whole: no response, or another history."""


class EndRequest(NamedTuple):
    """End of a producer's transaction that a client asks for.

    `arrived_at` is the monotonic time of this process when it received the request.
    """

    transactional_id: str
    producer: ProducerIdentity
    commits: bool
    arrived_at: float
    bumps_epoch: bool = False


class EndedTransaction(NamedTuple):
    """Result of an end: the producer's new identity, and the extents of the control batches that it wrote.

    `leaders` are the nodes that have markers to append to the logs of local partitions.
    """

    producer: ProducerIdentity
    controls: tuple[Extent, ...] = ()
    leaders: frozenset[int] = frozenset()

    @property
    def partitions(self) -> tuple[PartitionId, ...]:
        """The partitions that changed."""
        return tuple(PartitionId(each.topic_id, each.partition) for each in self.controls)


class _SentEnd(NamedTuple):
    """An `end_transaction` whose result arrives with that of COMMIT."""

    rows: Rows
    leaders: Rows | None
    control: ControlBatch
    epoch: int
    now_ms: int

    def result(self, producer: ProducerIdentity) -> EndedTransaction:
        """Return the result for the producer's new identity."""
        leaders = () if self.leaders is None else self.leaders.fetchall()
        return EndedTransaction(producer, self.controls(), frozenset(node_id for (node_id,) in leaders))

    def controls(self) -> tuple[Extent, ...]:
        """Return the extents that it wrote."""
        return tuple(
            control_extent(PartitionId(topic_id, partition), offset, self.control, self.epoch, self.now_ms)
            for topic_id, partition, offset in self.rows.fetchall()
        )


class _Sent(NamedTuple):
    """The result of a transaction, once it has ended."""

    producer: ProducerIdentity
    ended: _SentEnd | None = None

    def received(self) -> EndedTransaction:
        """Return the result, after the transaction."""
        return EndedTransaction(self.producer) if self.ended is None else self.ended.result(self.producer)


class _ServerClock:
    """Comparisons of the server's time with this process's monotonic time, for one transaction.

    The server read its clock, `now_ms`, before its response was received. So the earliest time of a moment is
    that reading minus the time since the moment. It may be far too early if the server waited for locks in
    between, and by milliseconds on a busy machine. The clock is then read again, up to `_MAX_READINGS` times.
    Of all readings the latest result counts, because each one is a lower bound.
    """

    def __init__(
        self, transaction: Transaction, monotonic: Callable[[], float], now_ms: int, received_at: float
    ) -> None:
        self._transaction = transaction
        self._monotonic = monotonic
        self._now_ms = now_ms
        self._lead_ms = now_ms - received_at * 1000
        self._readings = 0

    def is_after(self, time_ms: int, moment: float) -> bool:
        """Return True if a time of the server may be after a moment, and is not in the future.

        A time in the future shows only that the server's clock went back.
        """
        while time_ms > floor(self._lead_ms + moment * 1000):
            if self._readings == _MAX_READINGS:
                return time_ms <= self._now_ms
            self._now_ms = self._transaction.now_ms()
            self._lead_ms = max(self._lead_ms, self._now_ms - self._monotonic() * 1000)
            self._readings += 1
        return False


class LockedId(NamedTuple):
    """A locked transactional id, with the catalog's time and epoch."""

    producer: TransactionalProducer
    has_local_partitions: bool
    now_ms: int
    epoch: int


class Transactions:
    """Transactions of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database, incarnations: Incarnations) -> None:
        self._database = database
        self._incarnations = incarnations

    def initialize(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None = None
    ) -> EndedTransaction:
        """Return the identity of a new producer; an ongoing transaction of the id is aborted.

        Earlier producers of the id are fenced. `expected` is the identity of a producer that continues after
        an error (KIP-360). TransactionRefusedError: another producer has taken its place.
        EarlierAgentsError: an agent runs that does not know transactions.
        """

        def work(transaction: Transaction) -> _Sent:
            _exclude_earlier_releases(transaction)
            locked = self._lock(transaction, transactional_id)
            if locked is None:
                created = self._create(transaction, transactional_id, timeout_ms)
                if created is not None:
                    return _Sent(created)
                locked = self._lock(transaction, transactional_id)
                if locked is None:
                    raise replaced_error("it is not the server of the last registration")
            known = locked.producer
            ended: _SentEnd | None = None
            control: Ending | None = None
            if known.state is TransactionState.ONGOING:
                control = interrupt(known, expected)
                expected_now = None if expected is None else control.next.identity
            else:
                expected_now = expected
            before = known if control is None else control.next
            new_producer_id = self._new_producer_id(transaction) if needs_producer_id(before) else -1
            after = initialize(before, expected_now, timeout_ms, new_producer_id)
            if control is None:
                self._update(transaction, transactional_id, after, locked.now_ms)
            else:
                if expected is not None:
                    after = replace(after, last=expected)  # the epoch between was never the producer's
                ended = self._end(transaction, transactional_id, locked, control._replace(next=after))
            return _Sent(after.identity, ended)

        return self._database.transact("transactions.initialize", work).received()

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[PartitionId],
        local_partitions: Collection[PartitionId] = (),
    ) -> None:
        """Add partitions to the producer's transaction, and begin it if there is none.

        `local_partitions` are those of local topics. TransactionRefusedError (CONCURRENT_TRANSACTIONS): the
        leader of one of them has not completed the last transaction of the producer.
        """
        params = {
            "producer_id": producer.producer_id,
            "topic_ids": arrays.uuids(each.topic_id for each in partitions),
            "partitions": arrays.integers([each.partition for each in partitions]),
        }

        def work(transaction: Transaction) -> None:
            self._begin(transaction, transactional_id, producer)
            if partitions:
                transaction.send(_SQL["add_partitions"], params)
            if local_partitions:
                _add_local_partitions(transaction, producer.producer_id, local_partitions)

        self._database.transact("transactions.add_partitions", work)

    def add_group(self, transactional_id: str, producer: ProducerIdentity, group_id: str) -> None:
        """Add a group to the producer's transaction, and begin it if there is none."""

        def work(transaction: Transaction) -> None:
            self._begin(transaction, transactional_id, producer)
            params = {"producer_id": producer.producer_id, "group_id": group_id}
            transaction.send(_SQL["add_group"], params)

        self._database.transact("transactions.add_group", work)

    def add_offsets(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        group: tuple[str, UUID, int | None],
        offsets: Sequence[CommittedOffset],
        *,
        adds_group: bool,
        arrived_at: float | None = None,
    ) -> OffsetCommit:
        """Store offsets that the transaction commits when it ends.

        `group` is the group's id, the coordinator's claim, and the generation (None: any). The group must
        have been added, unless `adds_group` (KIP-890): then this call adds it, and begins the transaction if
        there is none. If a partition occurs several times, its last offset counts.

        `arrived_at` is the monotonic time of this process when it received the request. Without KIP-890, the
        next transaction has the same epoch. So the offsets do not become those of a transaction that began
        after their arrival, as in `end_all`: they may be older than its own. None leaves this check out.
        """
        group_id, claim_id, generation = group
        last = {(each.topic_id, each.partition): each for each in offsets}
        params = {
            "group_id": group_id,
            "claim_id": claim_id,
            "producer_id": producer.producer_id,
            "topic_ids": arrays.uuids(topic_id for topic_id, _ in last),
            "partitions": arrays.integers([partition for _, partition in last]),
            "offsets": arrays.bigints([each.offset for each in last.values()]),
            "leader_epochs": arrays.integers([each.leader_epoch for each in last.values()]),
            "metadata": [each.metadata.encode() for each in last.values()],
        }

        def work(transaction: Transaction) -> OffsetCommit:
            locked = self.require(transaction, transactional_id, producer.producer_id)
            clock = _ServerClock(
                transaction, self._database.monotonic, locked.now_ms, self._database.monotonic()
            )
            require_current(locked.producer, producer)
            if arrived_at is not None and not adds_group:
                _require_begun_before(locked.producer, arrived_at, clock, transactional_id)
            rows = transaction.rows(_SQL["lock_group"], params)
            if not rows:
                return OffsetCommit(CommitOutcome.CLAIM_LOST)
            (found,) = rows
            if generation is not None and found.generation > generation:
                return OffsetCommit(CommitOutcome.STALE_GENERATION)
            if adds_group:
                self.begin_locked(transaction, transactional_id, locked, producer)
                transaction.send(_SQL["add_group"], params)
            elif locked.producer.state is not TransactionState.ONGOING or not found.is_added:
                raise TransactionRefusedError(
                    TransactionRefusal.INVALID_TXN_STATE, f"group {group_id} was not added to the transaction"
                )
            if last:
                transaction.send(_SQL["add_offsets"], params)
            return OffsetCommit(CommitOutcome.COMMITTED, frozenset(found.deleted_topic_ids))

        return self._database.transact("transactions.add_offsets", work)

    def end(
        self, transactional_id: str, producer: ProducerIdentity, *, commits: bool, bumps_epoch: bool = False
    ) -> EndedTransaction:
        """Commit or abort the producer's transaction; return its identity from now on.

        With `bumps_epoch` (KIP-890), the producer continues with the next epoch. A retry after a lost
        response returns the same identity.
        """
        arrived_at = self._database.monotonic()
        (ended,) = self.end_all([EndRequest(transactional_id, producer, commits, arrived_at, bumps_epoch)])
        if isinstance(ended, Exception):
            raise ended
        return ended

    def end_all(
        self, requests: Sequence[EndRequest], *, waits_briefly: bool = False
    ) -> Sequence[EndedTransaction | Exception]:
        """Do the same for several transactional ids at once; return the results in this order.

        Transactions often share partitions. If they ended separately, each would wait until the server has
        synced the end of the previous one. If they cannot end together because of an error that one of them
        may cause, they end one by one, and only that one fails. An outage fails all of them, and so does
        CatalogTimeoutError: one of them may wait for a lock, or take too long. The caller then ends them
        apart. With `waits_briefly`, the first lock that is not granted within about a second raises it;
        otherwise, the limit is `lock_seconds`.

        Without KIP-890, the next transaction has the same epoch. Its producer may have begun it meanwhile,
        because it gave up this request and repeated it at another agent. So a request ends no transaction
        that began after its arrival. CONCURRENT_TRANSACTIONS: there is such a transaction. If an earlier
        attempt has ended the transaction after all, a later one changes nothing (`rules.end`).
        """
        try:
            return self._end_together(requests, waits_briefly=waits_briefly)
        except _CATALOG_ERRORS:
            raise
        except Exception as error:
            if len(requests) == 1:
                raise
            _log.warning("transactions are ended one by one", transactions=len(requests), error=str(error))
        return self._end_one_by_one(requests, waits_briefly=waits_briefly)

    def _end_one_by_one(
        self, requests: Sequence[EndRequest], *, waits_briefly: bool
    ) -> list[EndedTransaction | Exception]:
        """End each transaction alone. After an error that concerns all, the following ones are not tried."""
        results: list[EndedTransaction | Exception] = []
        outage: Exception | None = None
        for request in requests:
            if outage is not None:
                results.append(outage)
                continue
            try:
                results += self._end_together([request], waits_briefly=waits_briefly)
            except _CATALOG_ERRORS as error:
                outage = error
                results.append(error)
            except Exception as error:  # noqa: BLE001  # the client of this transaction receives it
                results.append(error)
        return results

    def _end_together(
        self, requests: Sequence[EndRequest], *, waits_briefly: bool
    ) -> list[EndedTransaction | TransactionRefusedError]:
        """End transactions in one transaction of the database."""
        names = [each.transactional_id for each in requests]
        producers = [each.producer.producer_id for each in requests]

        def work(transaction: Transaction) -> list[_Sent | TransactionRefusedError]:
            sent_ids = transaction.send(_SQL["lock_transactional_ids"], self._lock_params(*names))
            # The partitions are locked in the same round trip, before the ids are known to be the producers'.
            transaction.send(_SQL["lock_partitions"], {"producer_ids": arrays.bigints(producers)})
            transaction.wait()
            received_at = self._database.monotonic()
            locked = _locked(sent_ids.fetchall())
            now_ms = min((each.now_ms for each in locked.values()), default=0)
            clock = _ServerClock(transaction, self._database.monotonic, now_ms, received_at)
            # In the order in which the deletion of a local topic locks the same rows.
            order = sorted(range(len(requests)), key=producers.__getitem__)
            sent = {
                each: self._end_locked(
                    transaction, locked.get(requests[each].transactional_id), requests[each], clock
                )
                for each in order
            }
            return [sent[each] for each in range(len(requests))]

        results = self._database.transact("transactions.end", work, repeats_lock_waits=not waits_briefly)
        return [each.received() if isinstance(each, _Sent) else each for each in results]

    def _end_locked(
        self,
        transaction: Transaction,
        locked: LockedId | None,
        request: EndRequest,
        clock: _ServerClock,
    ) -> _Sent | TransactionRefusedError:
        """End a transaction, unless it began after the request."""
        try:
            if locked is None:
                raise unknown_producer(request.producer.producer_id)
            known = locked.producer
            is_exhausted = request.bumps_epoch and needs_producer_id(known)
            new_producer_id = self._new_producer_id(transaction) if is_exhausted else -1
            ending = end(
                known,
                request.producer,
                new_producer_id,
                commits=request.commits,
                bumps_epoch=request.bumps_epoch,
            )
            if ending is None:
                return _Sent(known.identity)
            if not request.bumps_epoch:
                _require_begun_before(known, request.arrived_at, clock, request.transactional_id)
        except TransactionRefusedError as refusal:
            return refusal
        ended = self._write_end(transaction, request.transactional_id, locked, ending)
        return _Sent(ending.next.identity, ended)

    def abort(
        self, transactional_id: str, producer: ProducerIdentity, *, started_ms: int | None = None
    ) -> EndedTransaction:
        """Abort the ongoing transaction of a producer and fence it; return what changed.

        It has no effect if the transaction has ended, or if another producer has taken over. With
        `started_ms`, it has no effect on another transaction of the producer: without KIP-890, the next one
        has the same epoch.
        """

        def work(transaction: Transaction) -> _Sent:
            locked = self._lock(transaction, transactional_id)
            if locked is None or locked.producer.identity != producer:
                return _Sent(producer)
            if locked.producer.state is not TransactionState.ONGOING:
                return _Sent(producer)
            if started_ms is not None and locked.producer.started_ms != started_ms:
                return _Sent(producer)
            ended = self._end(transaction, transactional_id, locked, fence(locked.producer))
            return _Sent(producer, ended)

        return self._database.transact("transactions.abort", work).received()

    def abort_of(self, producer: ProducerIdentity) -> EndedTransaction | None:
        """Do the same as `abort` without the transactional id; return None if there is no transaction."""
        params = {"producer_id": producer.producer_id}
        for row in self._database.read("transactions.id_of", _SQL["ongoing_id_of"], params):
            if row.producer_epoch == producer.producer_epoch:
                return self.abort(row.transactional_id, producer)
        return None

    def expire_idle(self, expiration_ms: int, *, limit: int = 1000) -> int:
        """Delete transactional ids that were not used for long; return how many."""
        params = {
            "now_ms": self._database.injected_now_ms,
            "expiration_ms": expiration_ms,
            "limit": limit,
        }
        return self._database.transact(
            "transactions.expire_idle", lambda transaction: transaction.count(_SQL["expire_idle"], params)
        )

    def settle(self, grace_ms: int, *, limit: int = 1000) -> int:
        """Record that partitions have no transactions any more; return how many.

        They have no open transaction, no control batch and no aborted record, and the last of these was
        removed at least `grace_ms` ago. Readers cache extents for less than that.
        """

        def work(transaction: Transaction) -> int:
            params = {"now_ms": self._database.injected_now_ms, "grace_ms": grace_ms, "limit": limit}
            locked = transaction.rows(_SQL["lock_settled"], params)
            if not locked:
                return 0
            settled = {
                "topic_ids": arrays.uuids(row.topic_id for row in locked),
                "partitions": arrays.integers([row.partition for row in locked]),
            }
            return transaction.count(_SQL["settle"], settled)  # its snapshot is taken under the locks

        return self._database.transact("transactions.settle", work)

    def _lock_params(self, *transactional_ids: str) -> dict[str, object]:
        evidence = self._incarnations.evidence
        return {
            "transactional_ids": list(transactional_ids),
            "now_ms": self._database.injected_now_ms,
            "flushed": evidence.flushed,
            "last_commit": evidence.last_commit,
        }

    def _lock(self, transaction: Transaction, transactional_id: str) -> LockedId | None:
        rows = transaction.rows(_SQL["lock_transactional_ids"], self._lock_params(transactional_id))
        return _locked(rows).get(transactional_id)

    def require(self, transaction: Transaction, transactional_id: str, producer_id: int) -> LockedId:
        """Lock a transactional id; raise TransactionRefusedError if it does not exist."""
        locked = self._lock(transaction, transactional_id)
        if locked is None:
            raise unknown_producer(producer_id)
        return locked

    def _create(
        self, transaction: Transaction, transactional_id: str, timeout_ms: int
    ) -> ProducerIdentity | None:
        """Insert a transactional id; return None if another transaction has inserted it meanwhile."""
        params = {
            "transactional_id": transactional_id,
            "timeout_ms": timeout_ms,
            "now_ms": self._database.injected_now_ms,
        }
        rows = transaction.rows(_SQL["insert_transactional_id"], params)
        return ProducerIdentity(rows[0].producer_id, 0) if rows else None

    def _new_producer_id(self, transaction: Transaction) -> int:
        rows = transaction.rows(_PRODUCER_SQL["new_producer_id"])
        if not rows:
            raise replaced_error("it is not the server of the last registration")
        return int(rows[0].producer_id)

    def _begin(self, transaction: Transaction, transactional_id: str, producer: ProducerIdentity) -> None:
        locked = self.require(transaction, transactional_id, producer.producer_id)
        self.begin_locked(transaction, transactional_id, locked, producer)

    def begin_locked(
        self, transaction: Transaction, transactional_id: str, locked: LockedId, producer: ProducerIdentity
    ) -> None:
        """Begin the transaction of a locked transactional id, unless it is ongoing."""
        begun = begin(locked.producer, producer, locked.now_ms)
        if begun is not locked.producer:
            self._update(transaction, transactional_id, begun, locked.now_ms)

    def _update(
        self, transaction: Transaction, transactional_id: str, producer: TransactionalProducer, now_ms: int
    ) -> None:
        params = {
            "transactional_id": transactional_id,
            "now_ms": now_ms,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            **_state_params(producer),
        }
        transaction.send(_SQL["update_transactional_id"], params)

    def _end(
        self, transaction: Transaction, transactional_id: str, locked: LockedId, ending: Ending
    ) -> _SentEnd:
        transaction.send(
            _SQL["lock_partitions"], {"producer_ids": arrays.bigints([locked.producer.producer_id])}
        )
        return self._write_end(transaction, transactional_id, locked, ending)

    def _write_end(
        self, transaction: Transaction, transactional_id: str, locked: LockedId, ending: Ending
    ) -> _SentEnd:
        params = {
            "transactional_id": transactional_id,
            "producer_id": locked.producer.producer_id,
            "control_epoch": ending.control_epoch,
            "commits": ending.commits,
            "epoch": locked.epoch,
            "now_ms": locked.now_ms,
            "new_producer_id": ending.next.producer_id,
            "new_producer_epoch": ending.next.producer_epoch,
            **_state_params(ending.next),
        }
        rows = transaction.send(_SQL["end_transaction"], params)
        has_local = locked.has_local_partitions
        leaders = transaction.send(_LOCAL_SQL["end_partitions"], params) if has_local else None
        control = ControlBatch(locked.producer.producer_id, ending.control_epoch, ending.commits)
        return _SentEnd(rows, leaders, control, locked.epoch, locked.now_ms)


def _require_begun_before(
    known: TransactionalProducer, moment: float, clock: _ServerClock, transactional_id: str
) -> None:
    """Raise CONCURRENT_TRANSACTIONS if the ongoing transaction may have begun after a moment."""
    if known.started_ms is not None and clock.is_after(known.started_ms, moment):
        raise TransactionRefusedError(
            TransactionRefusal.CONCURRENT_TRANSACTIONS,
            f"the transaction of {transactional_id!r} began after the arrival of the request",
        )


def _exclude_earlier_releases(transaction: Transaction) -> None:
    """Exclude processes that ignore transactions from the catalog, from the first producer on.

    EarlierAgentsError: such an agent runs. Others cannot start from now on. An agent that was about to
    register stops with its first heartbeat, a watcher with its next look.
    """
    params = {"version": _KNOWS_TRANSACTIONS}
    (earlier,) = transaction.rows(_SQL["earlier_releases"], params)
    if earlier.are_admitted:  # look again when no agent can register meanwhile
        transaction.send(_SQL["lock_registrations"])
        (earlier,) = transaction.rows(_SQL["earlier_releases"], params)
    if earlier.have_agents:
        raise EarlierAgentsError(
            "an agent of an earlier release runs, which ignores transactions",
            remedy="upgrade all agents",
            retry_after_seconds=1.0,
        )
    if earlier.are_admitted:
        transaction.send(_SQL["exclude_earlier_releases"], params)


def _locked(rows: Sequence[TupleRow]) -> dict[str, LockedId]:
    """Convert the rows of `lock_transactional_ids`; raise CatalogReplacedError after a loss of commits."""
    locked = {}
    for transactional_id, *fields, has_local_partitions, now_ms, epoch, is_current in rows:
        if not is_current:
            raise replaced_error(
                "it is not the server of the last registration, or lacks a part of its WAL or the last commit"
            )
        locked[transactional_id] = LockedId(producer_of(*fields), has_local_partitions, now_ms, epoch)
    return locked


def _add_local_partitions(
    transaction: Transaction, producer_id: int, partitions: Collection[PartitionId]
) -> None:
    """Add local partitions to a locked transaction, unless the marker of the last one is pending in one."""
    params = {
        "producer_id": producer_id,
        "topic_ids": arrays.uuids(each.topic_id for each in partitions),
        "partitions": arrays.integers([each.partition for each in partitions]),
    }
    # First: a leader may complete a marker between the two statements, without a lock on the id.
    if transaction.rows(_LOCAL_SQL["pending_of_producer"], params):
        raise TransactionRefusedError(
            TransactionRefusal.CONCURRENT_TRANSACTIONS,
            f"the last transaction of producer {producer_id} is not complete in a local partition yet",
        )
    transaction.send(_LOCAL_SQL["add_partitions"], params)


def _state_params(producer: TransactionalProducer) -> dict[str, object]:
    return {
        "last_producer_id": producer.last.producer_id,
        "last_epoch": producer.last.producer_epoch,
        "timeout_ms": producer.timeout_ms,
        "state": producer.state.value,
        "bumps_epoch": producer.bumps_epoch,
        "started_ms": producer.started_ms,
    }
