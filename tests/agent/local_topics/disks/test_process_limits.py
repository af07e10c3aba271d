"""An agent stops although work on its disks waits for a file descriptor that does not come."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, NoReturn

import pytest
from confluent_kafka import Producer

from local_tier.files.process_limits import process_limits
from local_tier.log.unified_log import UnifiedLog
from tests.agent.kafka.in_process_clients import produce
from tests.agent.kafka.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration


def _wait_for_ever(*_: object) -> None:
    def fail() -> NoReturn:
        raise OSError(errno.EMFILE, "no descriptor is left")

    process_limits.run(fail)


def test_work_whose_caller_has_gone_does_not_block_the_stop(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    """The event loop waits for the threads of the disks."""
    disk = tmp_path / "disk"
    broker = start_broker(local_directories=(disk,))
    broker.create_topic("rock", 1, storage_mode="local")
    produce(broker.address, "rock", [(None, b"a")])
    local = broker.agent.data.local_logs.reader.local_topics
    assert local is not None
    work = local._disks.at(disk).run(_wait_for_ever)

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(work)

    async def leave(task: asyncio.Task[None]) -> None:
        task.cancel()

    task = broker.run(begin())
    until(lambda: process_limits.waiting == 1)
    broker.run(leave(task))
    broker.stop()
    assert process_limits.waiting == 0


def test_an_append_that_waits_does_not_block_the_stop(
    start_broker: Callable[..., BrokerThread], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent has `stop_timeout_ms` for it. Then the append fails, and the threads end."""
    broker = start_broker(local_directories=(tmp_path / "disk",), stop_timeout_ms=100)
    broker.create_topic("rock", 1, storage_mode="local")
    produce(broker.address, "rock", [(None, b"a")])
    monkeypatch.setattr(UnifiedLog, "_write", _wait_for_ever)
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce("rock", b"b", partition=0)
    producer.flush(0)
    until(lambda: process_limits.waiting == 1)
    storage = broker.agent.data.local_logs.storage
    assert storage is not None
    broker.stop()
    until(lambda: process_limits.waiting == 0)
    storage.close()  # the end of the process would do it
    producer.purge()
