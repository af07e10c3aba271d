"""An idempotent producer of librdkafka keeps its id and epoch when an agent cannot store a file.

In another epoch, it would send all batches again whose outcome it does not know.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import psycopg
import pytest
from confluent_kafka import Producer

from object_store.errors import StoreUnavailableError
from tests.agent.kafka.in_process_clients import TIMEOUT_SECONDS, consume
from tests.agent.kafka.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from object_store.accounting import Purpose
    from object_store.interface import Buffer
    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration
_BATCHES = 4
"""Fewer than the five requests that may be in flight."""


def test_batches_behind_a_failed_one_wait_for_its_retry(
    start_broker: Callable[..., BrokerThread], catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is in a file of its own, and the first of these files is lost."""
    broker = start_broker(write_attempts=1, flush_interval_ms=20, max_files_in_flight=_BATCHES)
    broker.create_topic("granite")
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "enable.idempotence": True,
            "linger.ms": 0,
            "retry.backoff.ms": 10,
        }
    )
    producer.produce("granite", b"first")
    assert producer.flush(TIMEOUT_SECONDS) == 0
    numbers = itertools.count()
    begun: list[int] = []
    put = broker.store.put

    def lose_one(name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        if "ingest" not in name:
            return put(name, body, purpose=purpose)
        begun.append(next(numbers))
        if begun[-1] == 0:
            until(lambda: len(begun) == _BATCHES)
            raise StoreUnavailableError("the file is lost")
        return put(name, body, purpose=purpose)

    monkeypatch.setattr(broker.store, "put", lose_one)
    for number in range(_BATCHES):
        producer.produce("granite", b"%d" % number)
        producer.poll(0)
        until(lambda number=number: len(begun) > number)  # type: ignore[misc]  # bound here
    assert producer.flush(TIMEOUT_SECONDS) == 0
    values = [message.value() for message in consume(broker.address, "granite", _BATCHES + 1)]
    assert values == [b"first", *(b"%d" % number for number in range(_BATCHES))]
    with psycopg.connect(catalog_url, options="-c search_path=siltstone") as connection:
        assert connection.execute("SELECT producer_epoch FROM producers").fetchall() == [(0,)]
