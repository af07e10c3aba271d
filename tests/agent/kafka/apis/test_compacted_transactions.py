"""What readers of committed records get while and after a compaction removes aborted ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from object_format.record_batch.headers import iter_headers
from object_format.record_batch.records import decode_batches
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings
from spark_jobs.task.compaction_task import run_compaction
from tests.agent.kafka.apis import test_transactions as scripted
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agent.kafka.codec import Struct
    from catalog.model import PartitionState
    from tests.agent.kafka.brokers import BrokerThread

_TOPIC = "granite"
_EVERYTHING = PlannerSettings(force=True)


def transact(wire: Wire, producer: Struct, sequence: int, value: bytes, *, commits: bool) -> None:
    scripted.add(wire, producer, 0)
    scripted.produce(wire, producer, sequence, value)
    scripted.end(wire, producer, commits=commits)


def compact(broker: BrokerThread) -> int:
    """Compact everything; return the number of jobs."""
    catalog = broker.catalog
    plan_and_submit(catalog, broker.clock, broker.ids, _EVERYTHING)
    jobs = catalog.jobs.claim("a test", 10)
    for job in jobs:
        assert job.attempt_id is not None
        catalog.jobs.complete(
            run_compaction(
                job.spec, broker.store, attempt_id=job.attempt_id, clock=broker.clock, ids=broker.ids
            )
        )
    return len(jobs)


def visible(found: Struct) -> list[bytes | None]:
    """Return the values that Kafka's consumer returns of a response."""
    waiting = sorted(found.aborted_transactions or [], key=lambda each: int(each.first_offset))
    dropped: set[int] = set()
    values: list[bytes | None] = []
    for position, header in iter_headers(found.records or b""):
        while waiting and waiting[0].first_offset <= header.last_offset:
            dropped.add(waiting.pop(0).producer_id)
        if header.is_control:
            dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            (columns,) = decode_batches(found.records[position : position + header.size])
            values += [each.value for each in columns.records()]
    return values


def committed(wire: Wire, *, max_wait: int = 0) -> list[bytes | None]:
    """Read all committed records."""
    values: list[bytes | None] = []
    offset = 0
    while True:
        found = scripted.fetch(wire, offset, max_wait=max_wait)
        values += visible(found)
        for _, header in iter_headers(found.records or b""):
            offset = header.next_offset
        if offset >= found.last_stable_offset:
            return values


def state_of(broker: BrokerThread) -> PartitionState:
    topic = broker.catalog.topics.get(_TOPIC)
    return broker.catalog.topics.partitions(topic.topic_id)[0]


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_fetch_reads_again_if_a_compaction_replaces_what_it_has_read(
    broker: BrokerThread, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic(_TOPIC, cleanup_policy=policy)
    find_aborted: Callable[..., Any] = broker.agent.data.read_path._find_aborted
    compacted: list[int] = []

    def compact_before(*arguments: object) -> object:
        if not compacted:
            compacted.append(compact(broker))
        return find_aborted(*arguments)

    with Wire(broker.host_and_port) as wire:
        producer = scripted.init(wire)
        transact(wire, producer, 0, b"aborted", commits=False)
        transact(wire, producer, 1, b"committed", commits=True)
        monkeypatch.setattr(broker.agent.data.read_path, "_find_aborted", compact_before)
        found = scripted.fetch(wire, 0)
        assert visible(found) == [b"committed"]
        assert compacted == [1]
        assert (found.aborted_transactions or []) == []
        assert b"aborted" not in bytes(found.records)


def test_a_fetch_shows_nothing_if_the_catalog_has_lost_the_history_of_its_bounds(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The abort before the last stable offset may be lost, and a new epoch lets the agent read again."""
    broker.create_topic(_TOPIC, cleanup_policy="delete")
    find_aborted: Callable[..., Any] = broker.agent.data.read_path._find_aborted

    def find_in_next_epoch(ranges: object, extents: object, epochs: Sequence[int]) -> object:
        return find_aborted(ranges, extents, [each - 1 for each in epochs])

    with Wire(broker.host_and_port) as wire:
        producer = scripted.init(wire)
        transact(wire, producer, 0, b"aborted", commits=False)
        monkeypatch.setattr(broker.agent.data.read_path, "_find_aborted", find_in_next_epoch)
        found = scripted.fetch(wire, 0)
        assert (found.error_code, bytes(found.records or b"")) == (0, b"")
        monkeypatch.undo()
        found = scripted.fetch(wire, 0)
        assert (visible(found), len(found.aborted_transactions)) == ([], 1)


@pytest.mark.parametrize("disks", [False, True])
def test_what_is_kept_in_memory_or_on_disk_shows_no_aborted_record_after_a_compaction(
    start_broker: Callable[..., BrokerThread], tmp_path: Path, *, disks: bool
) -> None:
    """The catalog does not name the aborted transaction any more, and the agent has its records."""
    changes = {"tail_bytes": 0, "local_directories": (tmp_path / "disk",)} if disks else {}
    broker = start_broker(**changes)
    broker.create_topic(_TOPIC, cleanup_policy="delete")
    with Wire(broker.host_and_port) as wire:
        producer = scripted.init(wire)
        transact(wire, producer, 0, b"first", commits=True)
        transact(wire, producer, 1, b"aborted", commits=False)
        for max_wait in (0, 50):
            assert committed(wire, max_wait=max_wait) == [b"first"]
        assert compact(broker) == 1
        for max_wait in (0, 50):
            assert committed(wire, max_wait=max_wait) == [b"first"]
        assert broker.catalog.transactions.settle(0) == 1
        assert not state_of(broker).has_transactions
        broker.agent.data.read_path._log.clear()
        for max_wait in (0, 50, 50):
            assert committed(wire, max_wait=max_wait) == [b"first"]
            assert visible(scripted.fetch(wire, 2, max_wait=max_wait)) == []


def test_blocks_of_an_uncommitted_reader_show_no_aborted_record_after_a_compaction(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """The partition has no transactions any more, and the cached blocks have those of before."""
    broker = start_broker(tail_bytes=0)
    broker.create_topic(_TOPIC, cleanup_policy="delete")
    with Wire(broker.host_and_port) as wire:
        producer = scripted.init(wire)
        transact(wire, producer, 0, b"first", commits=True)
        transact(wire, producer, 1, b"aborted", commits=False)
        assert b"aborted" in bytes(scripted.fetch(wire, 0, isolation=0, max_wait=50).records)
        assert broker.agent.data.blocks.of_topic(broker.catalog.topics.get(_TOPIC).topic_id)
        assert compact(broker) == 1
        assert broker.catalog.transactions.settle(0) == 1
        broker.agent.data.read_path._log.clear()
        for max_wait in (0, 50, 50):
            assert visible(scripted.fetch(wire, 2, max_wait=max_wait)) == []
            assert committed(wire, max_wait=max_wait) == [b"first"]
