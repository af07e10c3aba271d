"""Kafka's side of the comparison: its tools, its broker and its cleaner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from benchmarks.beside_kafka import cleaner, servers
from benchmarks.beside_kafka.java_process import JavaClients, JavaProcess, JavaTransactions
from benchmarks.beside_kafka.librdkafka_clients import LibrdkafkaClients
from benchmarks.beside_kafka.load import LoadError
from benchmarks.beside_kafka.security import SecureListener
from benchmarks.beside_kafka.servers import KafkaServer, topic
from benchmarks.beside_kafka.workers import Workers
from tests.fixtures.kafka_broker import kafka_broker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration
_QUICK_GROUPS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}


def test_kafkas_tools_load_a_broker(tmp_path: Path) -> None:
    """Several producers and consumers run at once, and an error of a tool is a failed load."""
    directory = tmp_path / "logs"
    directory.mkdir()
    with (
        JavaProcess("Loads.java", heap="256m") as java,
        JavaProcess("Transactions.java", heap="256m") as transactions,
        kafka_broker(directory, settings=_QUICK_GROUPS) as broker,
    ):
        server, clients = KafkaServer(broker, directory), JavaClients(java)
        with topic(server, "loaded", 2):
            produced = clients.produce(
                server.client_settings,
                "loaded",
                clients=2,
                records=300,
                record_bytes=100,
                codec="zstd",
                seconds=60,
            )
            assert produced.megabytes == 0.06
            assert produced.p50_ms is not None
            assert 0 < produced.requests["batch_kib"] <= 16  # batch.size
            assert 0 < produced.requests["in_flight"] <= 5  # max.in.flight.requests.per.connection
            for _ in range(2):  # the second time as well from the start
                read = clients.consume(
                    server.client_settings,
                    "loaded",
                    clients=2,
                    partitions=2,
                    records=600,
                    record_bytes=100,
                    seconds=60,
                )
                assert read.megabytes == pytest.approx(0.12, rel=0.01)
            transacted = JavaTransactions(transactions).transact(
                server.client_settings,
                "loaded",
                clients=2,
                partitions=2,
                transactions=3,
                records=10,
                record_bytes=100,
                seconds=60,
            )
            assert transacted.transactions == 6
            assert transacted.p50_ms is not None
            with pytest.raises(LoadError, match="ProducerPerformance"):
                clients.produce(
                    server.client_settings,
                    "loaded",
                    clients=1,
                    records=1,
                    record_bytes=100,
                    codec="unknown",
                    seconds=60,
                )
        assert server.cpu_seconds() > 0


def test_both_servers_are_loaded_over_sasl_ssl(tmp_path: Path) -> None:
    """Clients of both kinds log in to both servers. Nothing is served without a login."""
    with (
        Workers() as workers,
        JavaProcess("Loads.java", heap="256m") as java,
        servers.Testbed(tmp_path, SecureListener(tmp_path / "certificates")) as testbed,
    ):
        for server in testbed.servers():
            settings = server.client_settings
            assert settings["security.protocol"] == "SASL_SSL"
            with topic(server, "loaded", 2):
                for clients in (JavaClients(java), LibrdkafkaClients(workers)):
                    produced = clients.produce(
                        settings, "loaded", clients=1, records=300, record_bytes=100, codec="none", seconds=60
                    )
                    assert produced.megabytes == 0.03
                read = JavaClients(java).consume(
                    settings, "loaded", clients=1, partitions=2, records=600, record_bytes=100, seconds=60
                )
                assert read.megabytes == pytest.approx(0.06, rel=0.01)
            stranger = AdminClient({**settings, "sasl.password": "wrong", "log_level": 0})
            with pytest.raises(KafkaException):
                stranger.list_topics(timeout=5)


def test_both_cleaners_clean_the_same_log(tmp_path: Path) -> None:
    """A row has the processor time of each, and nothing is left of the logs."""
    with JavaProcess("Cleaning.java", heap="512m") as kafka:
        cases = [cleaner.Case(codec="lz4")]
        (compared,) = cleaner.compare(tmp_path, cases, kafka, rounds=1, share=0.002)
    figures = compared.figures()
    assert figures["case"] == {"records": 8000, "record_bytes": 136, "codec": "lz4"}
    assert figures["kafka"]["median"] > 0
    assert figures["limit"] > 0
    assert list(tmp_path.iterdir()) == []
