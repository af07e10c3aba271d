"""Transactional clients of a schedule, and what readers of committed records must find.

A transaction writes to all partitions of one topic and commits an offset of its client's group. Clients begin
again after errors, and leave transactions open. Requests of a stalled agent arrive late. Whatever happens,
readers find all records of a committed transaction, and none of any other.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

from agent.write.validation import validate
from catalog.errors import CatalogUnavailableError, TransactionRefusedError
from catalog.groups.offsets import CommitOutcome, CommittedOffset, OffsetCommit
from catalog.model import PartitionId
from core.errors import SiltstoneError
from maintenance.report import MaintenanceReport
from maintenance.transaction_timeouts import abort_timed_out
from object_format.record_batch.records import encode_batch
from tests.planner.system import System

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from agent.write.pending_append import AppendResult
    from catalog.model import Topic
    from catalog.transactions.repository import Transactions
    from catalog.transactions.rules import ProducerIdentity
    from object_store.local.store import LocalStore
    from tests.simulation.background_tasks import BackgroundTask
    from tests.simulation.environment import Environment, SimulatedAgent

T = TypeVar("T")
PARTITIONS: Final = 2
CLIENTS: Final = 2
TIMEOUT_MS: Final = 60_000
_REQUEST_SECONDS: Final = 15.0
_ATTEMPTS: Final = 5
_ABORT_SHARE, _ABANDON_SHARE = 0.2, 0.1


class _UnresolvedError(Exception):
    """A request failed, and may still take effect; or a producer was fenced."""


@dataclass
class Transaction:
    """A transaction of a client; `commits` is None if the client does not know its outcome."""

    client: int
    number: int
    commits: bool | None = False
    values: dict[int, bytes] = field(default_factory=dict)


class _Record(NamedTuple):
    offset: int
    producer_id: int
    value: bytes


@dataclass
class TransactionModel:
    """All transactions of a schedule, and what readers of committed records have seen of them."""

    env: Environment
    topic: Topic
    claim_id: UUID
    transactions: list[Transaction] = field(default_factory=list)
    seen: set[tuple[int, bytes]] = field(default_factory=set)

    @classmethod
    def start(cls, env: Environment) -> TransactionModel:
        """Create the topic and the groups."""
        catalog, claim_id = env.catalog, env.ids.new_uuid()
        topic = catalog.topics.create("schist", PARTITIONS, {"retention.ms": "-1"})
        for number in range(CLIENTS):
            catalog.groups.claim(group_of(number), claim_id, create=True)
        return cls(env, topic, claim_id)

    def begin(self, client: int) -> Transaction:
        """Return the next transaction of a client."""
        self.transactions.append(Transaction(client, len(self.transactions)))
        return self.transactions[-1]

    def key(self, partition: int) -> PartitionId:
        """Return the key of a partition."""
        return PartitionId(self.topic.topic_id, partition)

    def read_committed(self, store: object, partition: int, pause: Callable[[], object]) -> set[bytes]:
        """Return the committed values as an agent finds them; `pause` comes between its look-ups.

        It returns nothing if a compaction replaces what it has read.
        """
        catalog, env, key = self.env.catalog, self.env, self.key(partition)
        (state,) = catalog.topics.states([key])
        pause()
        end = state.last_stable_offset
        extents = [
            extent
            for extent in catalog.extents.from_offset(key.topic_id, partition, 0, max_extents=1000)
            if extent.base_offset < end
        ]
        system = System(catalog, cast("LocalStore", store), env.clock, env.ids, env.ids.new_uuid())
        records = [
            _Record(record.offset, int((record.key or b"").decode()), record.value or b"")
            for extent in extents
            if extent.control is None
            for record in system.read(extent)
            if record.offset < end
        ]
        pause()
        aborted = catalog.transaction_lookups.aborted({key: (0, end)}, extents).get(key)
        if aborted is None:
            return set()
        return {
            record.value
            for record in records
            if not any(
                each.producer_id == record.producer_id
                and each.first_offset <= record.offset <= each.last_offset
                for each in aborted
            )
        }

    def check(self, store: object) -> list[str]:
        """Return a sentence for each violation, after all transactions have ended."""
        catalog = self.env.catalog
        found = [str(each) for each in catalog.transaction_lookups.contradictions()]
        for partition in range(PARTITIONS):
            (state,) = catalog.topics.states([self.key(partition)])
            if state.last_stable_offset != state.high_watermark:
                found.append(f"a transaction is open: {state}")
        visible = [self.read_committed(store, number, lambda: None) for number in range(PARTITIONS)]
        found += [
            f"partition {partition}: committed {value!r} was seen and is gone"
            for partition, value in sorted(self.seen)
            if value not in visible[partition]
        ]
        last = dict.fromkeys(range(CLIENTS), -1)
        for each in self.transactions:
            shown = [value in visible[partition] for partition, value in each.values.items()]
            if any(shown) and not all(shown):
                found.append(f"{each} is shown in part: {shown}")
            elif each.commits is not None and each.commits != any(shown):
                found.append(f"{each} is {'shown' if any(shown) else 'missing'}")
            elif any(shown):
                last[each.client] = each.number
        return found + self._wrong_offsets(last)

    def _wrong_offsets(self, last: dict[int, int]) -> list[str]:
        key = self.key(0)
        committed = {
            group: offset.offset
            for group, offset in self.env.catalog.group_offsets.fetch(
                [(group_of(client), key) for client in last]
            )
        }
        return [
            f"{group_of(client)} has committed {committed.get(group_of(client), -1)}, not {number}"
            for client, number in last.items()
            if committed.get(group_of(client), -1) != number
        ]


def group_of(client: int) -> str:
    """Return the group whose offsets a client commits."""
    return f"group {client}"


def read(task: BackgroundTask) -> None:
    """Read the committed records of one partition, with pauses."""
    env = task.env
    model = env.transactions
    assert model is not None
    partition = env.rng.randrange(PARTITIONS)
    found = model.read_committed(
        env.store(env.process("reader of committed records")[1]),
        partition,
        lambda: env.fibers.pause(env.rng.expovariate(1 / 5)),
    )
    model.seen |= {(partition, value) for value in found}


def abort_late(task: BackgroundTask) -> None:
    """Abort the transactions that have timed out."""
    abort_timed_out(task.catalog, MaintenanceReport())


class TransactionalClient:
    """A client that runs transactions under one id; with `bumps_epoch`, by the rules of KIP-890.

    Without them, a late request could act on the next transaction. So the client begins again with another
    epoch after each request without a response.
    """

    def __init__(self, env: Environment, model: TransactionModel, number: int) -> None:
        self._env, self._model, self._number = env, model, number
        self._name = f"client {number}"
        self._bumps_epoch = env.rng.random() < 0.5  # half of the clients
        self._identity: ProducerIdentity | None = None
        self._last: ProducerIdentity | None = None
        self._sequences = [0] * PARTITIONS

    async def run(self, transactions: int) -> None:
        """Run this many transactions, with any outcome."""
        self._env.unfinished += 1
        for _ in range(transactions):
            try:
                await self._transact()
            except (_UnresolvedError, TransactionRefusedError):
                self._last, self._identity = self._identity, None
            await asyncio.sleep(self._env.rng.expovariate(1 / 5))
        self._env.unfinished -= 1

    async def _transact(self) -> None:
        rng, model = self._env.rng, self._model
        while self._identity is None:
            await self._initialize()
        transaction = model.begin(self._number)
        await self._write(transaction, self._identity)
        await self._add_offset(transaction.number, self._identity)
        drawn = rng.random()
        if drawn < _ABANDON_SHARE:
            raise _UnresolvedError
        await self._end(transaction, self._identity, commits=drawn > _ABANDON_SHARE + _ABORT_SHARE)

    async def _initialize(self) -> None:
        expected = self._last if self._env.rng.random() < 0.5 else None  # half of the times
        self._last = None
        try:
            ended = await self._call(lambda table: table.initialize(self._name, TIMEOUT_MS, expected))
        except (_UnresolvedError, TransactionRefusedError):
            return
        self._identity = ended.producer
        self._sequences = [0] * PARTITIONS

    async def _write(self, transaction: Transaction, identity: ProducerIdentity) -> None:
        keys = [self._model.key(number) for number in range(PARTITIONS)]
        if not self._bumps_epoch:
            await self._call(lambda table: table.add_partitions(self._name, identity, keys))
        for partition in range(PARTITIONS):
            value = b"%d %d %d.%d" % (transaction.number, partition, *identity)
            transaction.values[partition] = value
            for _ in range(_ATTEMPTS):
                if await self._send(partition, value, identity):
                    break
            else:
                raise _UnresolvedError
            self._sequences[partition] += 1

    async def _send(self, partition: int, value: bytes, identity: ProducerIdentity) -> bool:
        """Send a record once; return False if it should be sent again."""
        now_ms = self._env.clock.now_ms()
        data = encode_batch(
            [now_ms],
            [b"%d" % identity.producer_id],
            [value],
            producer=(*identity, self._sequences[partition]),
            is_transactional=True,
        )
        append = validate(
            self._model.topic,
            partition,
            bytearray(data),
            now_ms=now_ms,
            transactional_id=self._name,
            adds_partitions=self._bumps_epoch,
        )
        agent = await self._agent()
        try:
            (pending,) = agent.write_path.enqueue([append])
            agent.write_path.flush()
            results: list[AppendResult] = await asyncio.wait_for(pending.wait(), _REQUEST_SECONDS)
        except (TimeoutError, SiltstoneError):
            await asyncio.sleep(0.5)
            return False
        (result,) = results
        if result.refusal is not None:
            raise _UnresolvedError
        return result.appended

    async def _add_offset(self, offset: int, identity: ProducerIdentity) -> None:
        model, bumps_epoch = self._model, self._bumps_epoch
        group = group_of(self._number)
        committed = CommittedOffset(topic_id=model.topic.topic_id, partition=0, offset=offset)
        if not bumps_epoch:
            await self._call(lambda table: table.add_group(self._name, identity, group))
        added = await self._call(
            lambda table: table.add_offsets(
                self._name, identity, (group, model.claim_id, None), [committed], adds_group=bumps_epoch
            )
        )
        assert added == OffsetCommit(CommitOutcome.COMMITTED), added

    async def _end(self, transaction: Transaction, identity: ProducerIdentity, *, commits: bool) -> None:
        transaction.commits = None if commits else False
        ended = await self._call(
            lambda table: table.end(self._name, identity, commits=commits, bumps_epoch=self._bumps_epoch)
        )
        transaction.commits = commits
        self._identity = ended.producer
        if self._bumps_epoch:
            self._sequences = [0] * PARTITIONS

    async def _call(self, call: Callable[[Transactions], T]) -> T:
        """Call the catalog through some agent; repeat a call that certainly has ended.

        _UnresolvedError: it may still take effect.
        """
        for _ in range(_ATTEMPTS):
            agent = await self._agent()
            work = self._env.fibers.run(lambda: call(agent.catalog.transactions), agent.process)  # noqa: B023  # awaited here
            try:
                return await asyncio.wait_for(work, _REQUEST_SECONDS)
            except CatalogUnavailableError:
                await asyncio.sleep(0.5)
            except TimeoutError as error:
                raise _UnresolvedError from error
            except asyncio.CancelledError:
                if not agent.process.dead:
                    raise
        raise _UnresolvedError

    async def _agent(self) -> SimulatedAgent:
        while True:
            serving = [each for each in self._env.agents if each.is_serving]
            if serving:
                return self._env.rng.choice(serving)
            await asyncio.sleep(1)
