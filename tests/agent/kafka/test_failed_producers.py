"""Batches behind one that failed with a retriable error wait for its retry, wherever it failed.

Scripted requests of idempotent producers without a transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.runtime.byte_budget import ByteBudget
from agent.runtime.errors import BusyError
from agent.runtime.work_pool import WorkPool
from agent.write.failed_producers import FOLLOWS_FAILED_DETAIL
from catalog.errors import CatalogUnavailableError
from core.errors import NotFoundError
from object_format.codecs.codec import Codec
from object_format.record_batch.records import encode_batch
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from core.errors import SiltstoneError
    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration
_TOPIC = "granite"
_BUSY = BusyError("it is full", remedy="retry")


@dataclass
class Script:
    """A producer on one connection."""

    wire: Wire
    producer_id: int
    produced: Struct | None = None

    def send(self, sequence: int, *, count: int = 1, codec: Codec = Codec.NONE) -> ErrorCode:
        """Send a batch of `count` records, and return the error code of the response."""
        batch = encode_batch(
            [1] * count,
            [b"key"] * count,
            [b"%d" % sequence] * count,
            producer=(self.producer_id, 0, sequence),
            codec=codec,
        )
        part = Struct(index=0, records=batch)
        request = Struct(acks=-1, timeout=600_000, topic_data=[Struct(name=_TOPIC, partition_data=[part])])
        self.produced = self.wire.ask("produce", 9, request).responses[0].partition_responses[0]
        return ErrorCode(self.produced.error_code)

    @property
    def message(self) -> str:
        """The error message of the last response."""
        assert self.produced is not None
        return str(self.produced.error_message)


@pytest.fixture
def broker(start_broker: Callable[..., BrokerThread], tmp_path: Path) -> BrokerThread:
    """Start an agent with a disk."""
    return start_broker(local_directories=(tmp_path / "disk",))


@pytest.fixture
def script(broker: BrokerThread) -> Iterator[Script]:
    with Wire(broker.host_and_port) as wire:
        yield Script(wire, broker.catalog.producers.new_id())


def _fail_kernels(broker: BrokerThread, patch: pytest.MonkeyPatch) -> None:
    kernels, run = broker.agent.data.write_path._pools.kernels, WorkPool.run

    async def refuse(pool: WorkPool, call: Callable[[], object]) -> object:
        if pool is kernels:
            raise _BUSY
        return await run(pool, call)

    patch.setattr(WorkPool, "run", refuse)


def _fail_lookups(error: SiltstoneError, broker: BrokerThread, patch: pytest.MonkeyPatch) -> None:
    async def forget() -> None:
        broker.agent.data.directory.clear()

    broker.run(forget())
    patch.setattr(broker.catalog.topics, "get", Mock(side_effect=error))


def _fail_buffers(_broker: BrokerThread, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ByteBudget, "reserve", Mock(side_effect=_BUSY))


_UNAVAILABLE = CatalogUnavailableError("no catalog", remedy="wait", retry_after_seconds=1.0)
_FAULTS: dict[str, tuple[Callable[[BrokerThread, pytest.MonkeyPatch], None], ErrorCode]] = {
    "kernel pool": (_fail_kernels, ErrorCode.not_enough_replicas),
    "busy look-up": (partial(_fail_lookups, _BUSY), ErrorCode.not_enough_replicas),
    "unavailable look-up": (partial(_fail_lookups, _UNAVAILABLE), ErrorCode.request_timed_out),
    "unknown topic": (
        partial(_fail_lookups, NotFoundError("no topic")),
        ErrorCode.unknown_topic_or_partition,
    ),
    "buffer": (_fail_buffers, ErrorCode.not_enough_replicas),
}


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("storage_mode", ["object", "local"])
@pytest.mark.parametrize("fault", _FAULTS)
def test_a_gap_behind_a_retriable_failure_is_retriable(
    broker: BrokerThread, script: Script, fault: str, storage_mode: str, *, is_new: bool
) -> None:
    broker.create_topic(_TOPIC, storage_mode=storage_mode)
    first = 0 if is_new else 1
    if not is_new:
        assert script.send(0) is ErrorCode.none
    fail, code = _FAULTS[fault]
    with pytest.MonkeyPatch.context() as patch:
        fail(broker, patch)
        assert script.send(first, codec=Codec.GZIP) is code
    assert script.send(first + 1) is ErrorCode.not_enough_replicas
    assert script.message == FOLLOWS_FAILED_DETAIL
    assert [script.send(first + number) for number in range(2)] == [ErrorCode.none] * 2
    assert script.send(first + 3) is ErrorCode.not_enough_replicas  # for a minute


@pytest.mark.parametrize("storage_mode", ["object", "local"])
def test_a_gap_is_out_of_order_a_minute_after_the_failure(
    broker: BrokerThread, script: Script, storage_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.write.failed_producers.WAIT_SECONDS", 0)
    broker.create_topic(_TOPIC, storage_mode=storage_mode)
    assert script.send(0) is ErrorCode.none
    with pytest.MonkeyPatch.context() as patch:
        _fail_buffers(broker, patch)
        assert script.send(1) is ErrorCode.not_enough_replicas
    assert script.send(2) is ErrorCode.out_of_order_sequence_number


@pytest.mark.parametrize("storage_mode", ["object", "local"])
def test_a_sequence_that_the_log_has_passed_is_out_of_order(
    broker: BrokerThread, script: Script, storage_mode: str
) -> None:
    broker.create_topic(_TOPIC, storage_mode=storage_mode)
    assert [script.send(number) for number in range(2)] == [ErrorCode.none] * 2
    with pytest.MonkeyPatch.context() as patch:
        _fail_buffers(broker, patch)
        assert script.send(2) is ErrorCode.not_enough_replicas
    assert script.send(0, count=2) is ErrorCode.out_of_order_sequence_number


@pytest.mark.parametrize("storage_mode", ["object", "local"])
def test_a_gap_behind_a_batch_that_is_not_retried_is_out_of_order(
    broker: BrokerThread, script: Script, storage_mode: str
) -> None:
    broker.create_topic(_TOPIC, storage_mode=storage_mode, max_message_bytes="200")
    assert script.send(0) is ErrorCode.none
    assert script.send(1, count=100) is ErrorCode.message_too_large
    assert script.send(101) is ErrorCode.out_of_order_sequence_number
