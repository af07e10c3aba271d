"""The loads of the comparison with Kafka, on an agent alone."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

import pytest

from agent.group_settings import GroupSettings
from benchmarks.beside_kafka import consumers, groups, librdkafka_work, producers, transactions
from benchmarks.beside_kafka.comparison import Comparison, Sample, alternate, table
from benchmarks.beside_kafka.librdkafka_clients import LibrdkafkaClients
from benchmarks.beside_kafka.load import Load, LoadError
from benchmarks.beside_kafka.servers import KAFKA, SILTSTONE, SiltstoneServer, topic
from benchmarks.beside_kafka.workers import Workers
from benchmarks.parts.kafka_process import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.beside_kafka.servers import Server

_PUT_DELAY_MS = 30


@pytest.fixture
def workers() -> Iterator[Workers]:
    with Workers() as started:
        yield started


@pytest.mark.integration
def test_clients_load_an_agent_whose_puts_are_slow(tmp_path: Path, workers: Workers) -> None:
    """All records are acknowledged, read and followed, each PUT has the delay, and a group starts.

    The end of a transaction takes three statements.
    """
    clients = LibrdkafkaClients(workers)
    at_once = GroupSettings(group_initial_rebalance_delay_ms=0)
    with (
        Cluster(tmp_path) as cluster,
        cluster.agent(put_delay_ms=_PUT_DELAY_MS, groups=at_once) as agent,
    ):
        server = SiltstoneServer(agent, cluster)
        settings = server.client_settings

        def produce(loaded: Server, number: int) -> Load:
            assert loaded is server
            return clients.produce(
                settings,
                "loaded",
                clients=2,
                records=150 + number,
                record_bytes=100,
                codec="lz4",
                seconds=60,
            )

        with topic(server, "loaded", 3):
            samples = alternate([server], 2, produce)[SILTSTONE]
            assert [each.load.megabytes for each in samples] == [0.03, 0.0302]
            assert all(each.counters["put_ms"] >= _PUT_DELAY_MS for each in samples)
            assert all((each.load.p50_ms or 0) >= _PUT_DELAY_MS for each in samples)
            read = clients.consume(
                settings, "loaded", clients=3, partitions=3, records=602, record_bytes=100, seconds=60
            )
            assert read.megabytes == pytest.approx(3 * 0.0602)
            joined = clients.join(settings, "loaded", group="g", clients=2, partitions=3, seconds=60)
            assert joined.p99_ms is not None
        with topic(server, "followed", 1):
            followed = clients.follow(
                settings,
                "followed",
                clients=2,
                partitions=1,
                record_bytes=100,
                per_second=200,
                seconds=0.2,
                limit=60,
            )
        with topic(server, "transactions", 3):

            def transact(loaded: Server, number: int) -> Load:
                return clients.transact(
                    loaded.client_settings,
                    "transactions",
                    clients=2,
                    partitions=3,
                    transactions=3 + number,
                    records=10,
                    record_bytes=100,
                    seconds=60,
                )

            samples = alternate([server], 2, transact)[SILTSTONE]
            assert [each.load.transactions for each in samples] == [6, 8]
            # Two ends in one transaction of the catalog take four statements.
            assert all(2 <= each.counters["statements_per_end"] <= 3 for each in samples)
            assert all((each.load.p50_ms or 0) >= _PUT_DELAY_MS for each in samples)
        assert followed.megabytes == pytest.approx(2 * 0.004)
        assert (followed.p50_ms or 0) >= _PUT_DELAY_MS


def test_the_failure_of_one_client_ends_all(workers: Workers) -> None:
    """The next load gets new processes."""
    wrong = {
        "settings": {"no.such.setting": "1"},
        "topic": "t",
        "records": 1,
        "record_bytes": 8,
        "codec": "none",
    }
    with pytest.raises(LoadError, match=r"no\.such\.setting"):
        workers.run(librdkafka_work.produce, [wrong, wrong], 60)
    assert multiprocessing.active_children() == []


def _samples(*seconds: float) -> list[Sample]:
    return [Sample(Load(90.0, each, 1.0, 2.0), cpu_seconds=0.9) for each in seconds]


def test_a_row_compares_medians() -> None:
    """More MB/s are better, and fewer seconds are."""
    samples = {KAFKA: _samples(1.0, 3.0, 9.0), SILTSTONE: _samples(2.0, 1.0, 2.0)}
    rate = Comparison("producers", {"clients": 4}, samples, goal=2.0).figures()
    assert [rate[KAFKA]["median"], rate[SILTSTONE]["median"], rate["ratio"]] == [30.0, 45.0, 1.5]
    assert [rate[KAFKA]["min"], rate[KAFKA]["max"], rate["met"]] == [10.0, 90.0, False]
    assert rate[SILTSTONE]["cpu_seconds_per_gb"] == 10.0
    ended = [Sample(Load(0.0, each, 1.0, 2.0, transactions=60), 0.9) for each in (1.0, 2.0)]
    both = {KAFKA: ended[1:], SILTSTONE: ended[:1]}
    found = Comparison("transactions", {}, both, goal=1.0, unit="tx/s").figures()
    assert (found[KAFKA]["median"], found[SILTSTONE]["median"], found["ratio"]) == (30.0, 60.0, 2.0)
    assert found[KAFKA]["cpu_ms_per_transaction"] == 15.0
    assert table([found]).splitlines()[-1].split(" | ")[-2:] == ["15.0 ms/tx", " |"]
    time = Comparison("cleaner", {}, samples, goal=1.0, unit="s").figures()
    assert (time["ratio"], time["met"]) == (1.5, True)
    assert table([rate]).splitlines()[-1].split(" | ")[1:5] == [
        "30.0 (10.0 to 90.0) MB/s",
        "45.0 (45.0 to 90.0) MB/s",
        "1.50",
        "2.0, missed",
    ]


def test_a_row_shows_how_many_cores_were_idle() -> None:
    """A server that leaves cores idle waits for something else."""
    at_rest = {KAFKA: (0.0, 0.02, 0.5), SILTSTONE: (0.25, 0.25)}
    samples = {
        name: [Sample(Load(90.0, 1.0, 1.0, 2.0), 0.9, idle=each) for each in shares]
        for name, shares in at_rest.items()
    }
    row = Comparison("producers", {}, samples).figures()
    assert table([row]).splitlines()[-1].split(" | ")[-1] == "2%, 25% |"


def test_a_failed_cell_keeps_its_row() -> None:
    """Its reason is shown in place of figures."""
    row = Comparison("producers", {"clients": 4}, {}, goal=1.0, failure="too slow").figures()
    assert "| 4 clients | too slow |" in table([row])


def test_the_full_matrix_contains_the_default_one() -> None:
    assert set(producers.default_cases()) <= set(producers.full_cases())
    assert len(producers.full_cases()) == 540
    assert set(consumers.quick_cases()) <= set(consumers.default_cases())
    assert set(groups.quick_cases()) <= set(groups.default_cases())
    assert set(transactions.quick_cases()) <= set(transactions.default_cases())
