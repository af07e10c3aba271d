"""Real clients with quotas: librdkafka, the Java client and Kafka's tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from agent.quotas.client_quotas import ClientQuotas
from catalog.config.quota_entities import DEFAULT, QuotaEntity, QuotaKey
from tests.agent.kafka.in_process_clients import TIMEOUT_SECONDS
from tests.agent.kafka.test_quotas import set_quotas
from tests.real_clients.test_kafka_tools import Tools

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration
_LIMIT = 100_000.0
_RECORDS, _RECORD_BYTES = 300, 1000


@pytest.fixture
def charges(monkeypatch: pytest.MonkeyPatch) -> dict[QuotaKey, list[tuple[float, float]]]:
    """The charged amounts of each quota with their times, by the agent's clock."""
    found: dict[QuotaKey, list[tuple[float, float]]] = {key: [] for key in QuotaKey}
    record = ClientQuotas.record

    def note(quotas: ClientQuotas, key: QuotaKey, user: str, client_id: str | None, amount: float) -> int:
        found[key].append((quotas._clock.monotonic(), amount))
        return record(quotas, key, user, client_id, amount)

    monkeypatch.setattr(ClientQuotas, "record", note)
    return found


def assert_limited(charges: list[tuple[float, float]], seconds: float, ahead: int) -> None:
    """Check that no period has more than its share, that of the windows, and `ahead` requests."""
    assert sum(amount for _, amount in charges) > _RECORDS * _RECORD_BYTES
    most = ahead * max(amount for _, amount in charges)
    for first, (begin, _) in enumerate(charges):
        total = 0.0
        for end, amount in charges[first:]:
            total += amount
            assert total <= _LIMIT * (end - begin + seconds) + most


def test_clients_stay_within_their_byte_rates(
    start_broker: Callable[..., BrokerThread], charges: dict[QuotaKey, list[tuple[float, float]]]
) -> None:
    """Bytes are counted by the agent. Clients learn that they are throttled, and all records arrive."""
    broker = start_broker(quota_window_num=2)
    broker.create_topic("granite")
    set_quotas(broker, {"user": None}, producer_byte_rate=_LIMIT, consumer_byte_rate=_LIMIT)
    throttled: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "batch.size": 10_000,
            "linger.ms": 5,
            "max.in.flight.requests.per.connection": 5,
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )
    for _ in range(_RECORDS):
        producer.produce("granite", value=b"x" * _RECORD_BYTES)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert max(throttled) > 0
    # Two windows, and what the client had sent before it was muted.
    assert_limited(charges[QuotaKey.PRODUCER_BYTE_RATE], 2.0, ahead=6)
    tools = Tools(broker.address)
    try:
        read = tools(f"kafka-consumer-perf-test --topic granite --group g --num-records {_RECORDS}")
        assert f", {_RECORDS}, " in read
        assert_limited(charges[QuotaKey.CONSUMER_BYTE_RATE], 2.0, ahead=2)
        metrics = broker.agent.metrics.render().decode()
        assert 'siltstone_quota_throttles_total{quota="consumer_byte_rate"}' in metrics
        _set_with_tools(tools, broker)
    finally:
        tools.process.kill()
        tools.process.communicate()


def _set_with_tools(tools: Tools, broker: BrokerThread) -> None:
    """Set, show and remove quotas of each kind of entity with `kafka-configs`."""
    change = "kafka-configs --alter --entity-type"
    tools(f"{change} users --entity-default --delete-config producer_byte_rate,consumer_byte_rate")
    assert broker.catalog.client_quotas.list() == {}
    both = "users --entity-name ada --entity-type clients --entity-name a"
    tools(f"{change} {both} --add-config request_percentage=1.5")
    tools(f"{change} clients --entity-default --add-config producer_byte_rate=5")
    tools(f"{change} ips --entity-name 10.0.0.1 --add-config connection_creation_rate=5")
    assert broker.catalog.client_quotas.list() == {
        QuotaEntity(user="ada", client_id="a"): {"request_percentage": 1.5},
        QuotaEntity(client_id=DEFAULT): {"producer_byte_rate": 5.0},
        QuotaEntity(ip="10.0.0.1"): {"connection_creation_rate": 5.0},
    }
    described = tools("kafka-configs --describe --entity-type users --entity-type clients")
    assert "Quota configs for user-principal 'ada', client-id 'a' are request_percentage=1.5" in described
    assert "producer_byte_rate=5.0" in tools(
        "kafka-configs --describe --entity-type clients --entity-default"
    )
    assert "connection_creation_rate=5.0" in tools("kafka-configs --describe --entity-type ips")
    refused = tools.failing(
        f"{change} ips --entity-name nowhere.invalid --add-config connection_creation_rate=5"
    )
    assert "nowhere.invalid" in refused
    assert "cannot be 0" in tools.failing(
        f"{change} users --entity-name ada --add-config producer_byte_rate=0"
    )
