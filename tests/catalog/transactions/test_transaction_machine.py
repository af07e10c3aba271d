"""Random histories of transactional producers against a small model of Kafka's semantics.

The model is a list of entries for each partition, and the states of two transactional ids. Requests are lost,
repeated and late: each step may run twice, as after a lost response, and every producer that was ever
initialized goes on writing and ending.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from catalog.errors import TransactionRefusedError
from catalog.groups.offsets import CommitOutcome, CommittedOffset
from catalog.model import PartitionId, RunRefusal
from catalog.open import open_catalog
from catalog.transactions.rules import ProducerIdentity
from core.clock import ManualClock
from core.ids import SeededIds
from tests.catalog.checks import InvariantChecker
from tests.catalog.scene import Scene, run_of
from tests.fixtures.postgres import PATIENT

if TYPE_CHECKING:
    from tests.fixtures.postgres import PostgresForTests

_PARTITIONS = 2
_TIMEOUT_MS = 60_000
_NAMES = ("a", "b")


class _Entry(NamedTuple):
    """Offset of the log: a record of a transaction (`number`), a plain record (None), or a control batch."""

    number: int | None
    is_control: bool = False


@dataclass
class _Producer:
    """A client's view of itself: its identity, its protocol, and its next sequence numbers."""

    name: str
    identity: ProducerIdentity
    bumps_epoch: bool
    sequences: dict[int, int] = field(default_factory=dict)


@dataclass
class _Id:
    """Model of a transactional id: the current producer, and the ongoing transaction."""

    current: _Producer | None = None
    number: int | None = None  # of the ongoing transaction
    partitions: set[int] = field(default_factory=set)
    has_group: bool = False
    pending: tuple[int, int] | None = None  # position among all commits of offsets, and the offset
    started_ms: int = 0
    ended: bool | None = None  # outcome of the last transaction of the current epoch, None without one


class TransactionMachine(RuleBasedStateMachine):
    """Two transactional ids that write to the partitions of one topic, with zombies and retries."""

    postgres: PostgresForTests

    def __init__(self) -> None:
        super().__init__()
        self.url = self.postgres.create()
        self.clock = ManualClock()
        ids = SeededIds(1, self.clock)
        self.catalog = open_catalog(self.url, self.clock, ids, limits=PATIENT)
        self.transactions = self.catalog.transactions
        self.scene = Scene.set_up(self.catalog, ids)
        self.checker = InvariantChecker(self.catalog)
        self.topic = self.scene.topic(partitions=_PARTITIONS)
        self.claim = ids.new_uuid()
        self.catalog.groups.claim("g", self.claim, create=True)
        self.log: list[list[_Entry]] = [[] for _ in range(_PARTITIONS)]
        self.outcomes: dict[int, bool] = {}
        self.ids_by_name = {name: _Id() for name in _NAMES}
        self.zombies: list[_Producer] = []
        self.committed_offset: tuple[int, int] | None = None
        self.offset_commits = 0
        self.transactions_begun = 0

    @override
    def teardown(self) -> None:
        self.catalog.close()
        self.postgres.drop(self.url)

    def _key(self, partition: int) -> PartitionId:
        return PartitionId(self.topic.topic_id, partition)

    def _begin(self, model: _Id) -> None:
        if model.number is None:
            self.transactions_begun += 1
            model.number, model.started_ms = self.transactions_begun, self.clock.now_ms()
            model.ended = None

    def _end(self, model: _Id, *, commits: bool) -> None:
        """End the ongoing transaction of the model."""
        assert model.number is not None
        for partition in model.partitions:
            self.log[partition].append(_Entry(model.number, is_control=True))
        if commits and model.pending is not None:
            self.committed_offset = max(model.pending, self.committed_offset or model.pending)
        self.outcomes[model.number] = commits
        model.number, model.pending, model.has_group = None, None, False
        model.partitions.clear()
        model.ended = commits

    @rule(name=st.sampled_from(_NAMES), bumps_epoch=st.booleans())
    def initialize(self, name: str, *, bumps_epoch: bool) -> None:
        model = self.ids_by_name[name]
        identity = self.transactions.initialize(name, _TIMEOUT_MS).producer
        if model.current is not None:
            before = model.current.identity
            expected = before.producer_epoch + (1 if model.number is None else 2)
            assert identity == (before.producer_id, expected)
            self.zombies.append(model.current)
        if model.number is not None:
            self._end(model, commits=False)
        model.current, model.ended = _Producer(name, identity, bumps_epoch), None

    @precondition(lambda self: any(each.current for each in self.ids_by_name.values()))
    @rule(data=st.data(), repeats=st.booleans())
    def continue_after_an_error(self, data: st.DataObject, *, repeats: bool) -> None:
        """KIP-360: the producer names its identity; a retry gets the same one."""
        producer = data.draw(st.sampled_from(self._current()))
        model = self.ids_by_name[producer.name]
        found = {
            self.transactions.initialize(producer.name, _TIMEOUT_MS, producer.identity).producer
            for _ in range(2 if repeats else 1)
        }
        assert len(found) == 1
        if model.number is not None:
            self._end(model, commits=False)
        self.zombies.append(producer)
        (identity,) = found
        model.current, model.ended = _Producer(producer.name, identity, producer.bumps_epoch), None

    def _current(self) -> list[_Producer]:
        return [each.current for each in self.ids_by_name.values() if each.current is not None]

    @precondition(lambda self: any(each.current for each in self.ids_by_name.values()))
    @rule(data=st.data(), partitions=st.sets(st.integers(0, _PARTITIONS - 1), min_size=1))
    def add_partitions(self, data: st.DataObject, partitions: set[int]) -> None:
        producer = data.draw(st.sampled_from(self._current()))
        model = self.ids_by_name[producer.name]
        self.transactions.add_partitions(producer.name, producer.identity, [self._key(n) for n in partitions])
        self._begin(model)
        model.partitions |= partitions

    @precondition(lambda self: any(each.current for each in self.ids_by_name.values()))
    @rule(
        data=st.data(),
        partition=st.integers(0, _PARTITIONS - 1),
        count=st.integers(1, 3),
        repeats=st.booleans(),
    )
    def write(self, data: st.DataObject, partition: int, count: int, *, repeats: bool) -> None:
        producer = data.draw(st.sampled_from(self._current()))
        model = self.ids_by_name[producer.name]
        sequence = producer.sequences.get(partition, 0)
        run = run_of(
            count,
            producer=(*producer.identity, sequence),
            in_transaction=True,
            adds_partition=producer.bumps_epoch,
            transactional_id=producer.name,
        )
        offset = len(self.log[partition])
        is_refused = False
        for number in range(2 if repeats else 1):
            (result,) = self.scene.commit(self.topic, run, partition=partition).runs
            is_refused = result.refusal is not None
            if producer.bumps_epoch or partition in model.partitions:
                assert (result.refusal, result.base_offset, result.duplicate) == (None, offset, number > 0)
            else:
                assert result.refusal is RunRefusal.INVALID_TXN_STATE
        if not is_refused:
            self._begin(model)
            model.partitions.add(partition)
            self.log[partition] += [_Entry(model.number)] * count
            producer.sequences[partition] = sequence + count

    @rule(partition=st.integers(0, _PARTITIONS - 1), count=st.integers(1, 3))
    def write_outside_of_transactions(self, partition: int, count: int) -> None:
        result = self.scene.commit(self.topic, run_of(count), partition=partition)
        assert result.runs[0].base_offset == len(self.log[partition])
        self.log[partition] += [_Entry(None)] * count

    @precondition(lambda self: any(each.current for each in self.ids_by_name.values()))
    @rule(data=st.data(), offset=st.integers(0, 99))
    def add_offsets(self, data: st.DataObject, offset: int) -> None:
        producer = data.draw(st.sampled_from(self._current()))
        model = self.ids_by_name[producer.name]
        if not producer.bumps_epoch:
            self.transactions.add_group(producer.name, producer.identity, "g")
        offsets = [CommittedOffset(topic_id=self.topic.topic_id, partition=0, offset=offset)]
        group = ("g", self.claim, None)
        added = self.transactions.add_offsets(
            producer.name, producer.identity, group, offsets, adds_group=producer.bumps_epoch
        )
        assert added.outcome is CommitOutcome.COMMITTED
        self._begin(model)
        self.offset_commits += 1
        model.has_group, model.pending = True, (self.offset_commits, offset)

    @rule(offset=st.integers(0, 99))
    def commit_offsets_outside_of_transactions(self, offset: int) -> None:
        offsets = [CommittedOffset(topic_id=self.topic.topic_id, partition=0, offset=offset)]
        self.catalog.group_offsets.commit("g", self.claim, None, offsets)
        self.offset_commits += 1
        self.committed_offset = self.offset_commits, offset

    @rule()
    def delete_offsets(self) -> None:
        assert self.catalog.group_offsets.delete("g", self.claim, [self._key(0)])
        self.committed_offset = None
        for model in self.ids_by_name.values():
            model.pending = None

    @precondition(lambda self: any(each.current for each in self.ids_by_name.values()))
    @rule(data=st.data(), commits=st.booleans(), repeats=st.booleans())
    def end(self, data: st.DataObject, *, commits: bool, repeats: bool) -> None:
        producer = data.draw(st.sampled_from(self._current()))
        model = self.ids_by_name[producer.name]
        bumps_epoch = producer.bumps_epoch

        def call() -> ProducerIdentity:
            return self.transactions.end(
                producer.name, producer.identity, commits=commits, bumps_epoch=bumps_epoch
            ).producer

        is_allowed = model.number is not None or (bumps_epoch and not commits)
        is_allowed |= not bumps_epoch and model.ended is commits
        if not is_allowed:
            with pytest.raises(TransactionRefusedError):
                call()
            return
        found = {call() for _ in range(2 if repeats else 1)}
        expected = ProducerIdentity(
            producer.identity.producer_id, producer.identity.producer_epoch + int(bumps_epoch)
        )
        assert found == {expected}
        if model.number is not None:
            self._end(model, commits=commits)
        if bumps_epoch:
            self.zombies.append(
                _Producer(producer.name, producer.identity, bumps_epoch, dict(producer.sequences))
            )
            producer.identity = expected
            producer.sequences.clear()
            model.ended = None

    @precondition(lambda self: self.zombies)
    @rule(data=st.data(), partition=st.integers(0, _PARTITIONS - 1))
    def a_zombie_can_do_nothing(self, data: st.DataObject, partition: int) -> None:
        zombie = data.draw(st.sampled_from(self.zombies))
        sequence = zombie.sequences.get(partition, 0)
        run = run_of(
            1, producer=(*zombie.identity, sequence), adds_partition=True, transactional_id=zombie.name
        )
        (result,) = self.scene.commit(self.topic, run, partition=partition).runs
        assert result.refusal is RunRefusal.INVALID_PRODUCER_EPOCH
        with pytest.raises(TransactionRefusedError):
            self.transactions.add_partitions(zombie.name, zombie.identity, [self._key(partition)])
        with pytest.raises(TransactionRefusedError):
            self.transactions.add_group(zombie.name, zombie.identity, "g")

    @rule()
    def abort_what_lasts_too_long(self) -> None:
        self.clock.advance(_TIMEOUT_MS / 2000)
        late = {
            name
            for name, model in self.ids_by_name.items()
            if model.number is not None and model.started_ms + _TIMEOUT_MS < self.clock.now_ms()
        }
        found = self.catalog.transaction_lookups.timed_out()
        assert {each.transactional_id for each in found} == late
        for each in found:
            self.transactions.abort(each.transactional_id, each.producer, started_ms=each.started_ms)
            self.transactions.abort(each.transactional_id, each.producer, started_ms=each.started_ms)
            model = self.ids_by_name[each.transactional_id]
            self._end(model, commits=False)
            assert model.current is not None
            self.zombies.append(model.current)
            fenced = ProducerIdentity(each.producer.producer_id, each.producer.producer_epoch + 1)
            # No client has this identity; the next producer of the id gets the epoch after it.
            model.current = _Producer(each.transactional_id, fenced, bumps_epoch=False)
            model.ended = False

    @invariant()
    def readers_see_what_the_model_says(self) -> None:
        for partition, log in enumerate(self.log):
            (state,) = self.catalog.topics.states([self._key(partition)])
            is_open = [each.number is not None and each.number not in self.outcomes for each in log]
            stable = is_open.index(True) if True in is_open else len(log)
            bounds = (state.last_stable_offset, state.high_watermark, state.log_end_offset)
            assert bounds == (stable, len(log), len(log))
            extents = self.scene.extents(self.topic, partition)
            controls = {
                each.base_offset: each.control.commits for each in extents if each.control is not None
            }
            assert controls == {
                offset: self.outcomes[each.number]
                for offset, each in enumerate(log)
                if each.is_control and each.number is not None
            }
            self._check_aborted(partition, log, stable)

    def _check_aborted(self, partition: int, log: list[_Entry], stable: int) -> None:
        """Every stable record of an aborted transaction is in one of the ranges, and no other is."""
        expected = []
        for offset, entry in enumerate(log):
            number = entry.number
            if entry.is_control and number is not None and not self.outcomes[number]:
                first = log.index(_Entry(number)) if _Entry(number) in log else offset
                if first < offset:
                    expected.append((first, offset))
        key = self._key(partition)
        for base in range(0, stable, 3):
            found = self.catalog.transaction_lookups.aborted({key: (base, stable)})[key]
            overlapping = [(first, last) for first, last in expected if last >= base and first < stable]
            assert [(each.first_offset, each.last_offset) for each in found] == overlapping

    @invariant()
    def offsets_are_those_of_committed_transactions(self) -> None:
        pending = any(model.pending is not None for model in self.ids_by_name.values())
        found = self.catalog.group_offsets.fetch([("g", self._key(0))])
        if self.committed_offset is None and not pending:
            assert found == []
            return
        ((_, offset),) = found
        assert offset.offset == (-1 if self.committed_offset is None else self.committed_offset[1])
        assert offset.is_unstable == pending

    @invariant()
    def all_invariants_hold(self) -> None:
        assert self.checker.violations() == []


def test_transactions_agree_with_the_model(postgres: PostgresForTests) -> None:
    machine = type("Machine", (TransactionMachine,), {"postgres": postgres})
    run_state_machine_as_test(
        machine,
        settings=settings(
            settings(),
            max_examples=max(settings().max_examples // 10, 5),
            stateful_step_count=30,
            suppress_health_check=list(HealthCheck),
        ),
    )
