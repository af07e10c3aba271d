"""Dollars a month: of Siltstone on an object store, and of Kafka on the disks of three zones.

Each line says how it comes about. What is stored is the mean of the last month, and requests are those of
that month.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cost_model.engine.steady_state import stored_bytes_per_second
from cost_model.report.prices import GB

if TYPE_CHECKING:
    from cost_model.engine.outcome import Outcome
    from cost_model.report.prices import Prices, StorePrices

HOURS: Final = 730.0
SECONDS: Final = HOURS * 3600
ROW_BYTES: Final = 300
"""A row of the catalog with its part of the indexes."""

CATALOG_SERVERS: Final = 2
DISK_HEADROOM: Final = 2.0
TASK_UTILIZATION: Final = 0.7

REPLICAS: Final = 3
BROKER_DISK_FILL: Final = 0.6
BROKER_MB_PER_SECOND: Final = 250.0
"""What a broker of 16 vCPU writes, or sends: 40 % of its bandwidth to gp3 disks, 5 Gbit/s."""

BROKER_REPLICAS: Final = 4_000
"""Replicas of partitions on one broker, as Kafka's own operators advise at the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One term of a bill, and how it comes about."""

    term: str
    how: str
    dollars: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What something costs in a month."""

    name: str
    lines: tuple[Line, ...]

    @property
    def dollars(self) -> float:
        """All lines together."""
        return sum(line.dollars for line in self.lines)


def siltstone_bill(outcome: Outcome, prices: Prices, *, express: bool) -> Bill:
    """The simulated system on S3 Standard, or on S3 Express One Zone."""
    store = prices.s3_express if express else prices.s3_standard
    name = "Siltstone on S3 Express One Zone" if express else "Siltstone on S3 Standard"
    return Bill(name=name, lines=(*_store_lines(outcome, store), *_server_lines(outcome, prices)))


def _store_lines(outcome: Outcome, store: StorePrices) -> list[Line]:
    month, stored = outcome.month, outcome.mean("stored_bytes")
    parts = month.multipart_create + month.multipart_part + month.multipart_complete
    gets = month.get_compaction + month.get_gc
    put, get = store.put_thousand / 1000, store.get_thousand / 1000
    lines = [
        Line(term="storage", how=f"{stored / GB:,.0f} GB", dollars=store.storage(stored)),
        _requests("PUT by agents", month.put_ingest, put),
        _requests("uploads by jobs, in parts", parts, put),
        _requests("LIST by garbage collection", month.list_gc, put),
        _requests("GET by jobs", gets, get),
        _requests("GET for consumers", month.get_fetch, get),
        _requests("DELETE calls", month.delete_calls, store.delete_thousand / 1000),
    ]
    if store.upload_gb or store.retrieval_gb:
        written = month.ingested_bytes + month.written_bytes
        read = month.read_bytes + month.fetch_bytes
        lines.append(_volume("bytes uploaded", written, store.upload_gb))
        lines.append(_volume("bytes retrieved", read, store.retrieval_gb))
    return lines


def _server_lines(outcome: Outcome, prices: Prices) -> list[Line]:
    workload, month = outcome.workload, outcome.month
    agent, task = prices.compute["agent_hour"], prices.compute["task_vcpu_hour"]
    catalog = prices.compute["catalog_hour"]
    busy = (month.read_bytes + month.written_bytes) / (workload.task_mb_per_second * 1e6) / SECONDS
    cores = busy / TASK_UTILIZATION
    disk = outcome.mean("rows") * ROW_BYTES * DISK_HEADROOM * CATALOG_SERVERS
    crossing = 0.0
    if not workload.zone_aware and workload.zones > 1:
        away = 1 - 1 / workload.zones
        crossing = sum(
            away * (1 + each.consumers) * stored_bytes_per_second(each) * SECONDS for each in workload.topics
        )
    return [
        Line(
            term="agents",
            how=f"{workload.agents} at ${agent} an hour",
            dollars=workload.agents * agent * HOURS,
        ),
        Line(
            term="compaction",
            how=f"{cores:,.1f} vCPU at ${task} an hour, {busy:,.1f} of them busy",
            dollars=cores * task * HOURS,
        ),
        Line(
            term="catalog",
            how=f"{CATALOG_SERVERS} PostgreSQL servers at ${catalog} an hour",
            dollars=CATALOG_SERVERS * catalog * HOURS,
        ),
        _volume("catalog's disks", disk, prices.block_storage["gb_month"]),
        _volume("traffic between zones", crossing, prices.network["zone_gb"]),
    ]


def kafka_bill(outcome: Outcome, prices: Prices, *, follower_fetching: bool) -> Bill:
    """The same workload on Kafka with three replicas in three zones, on gp3 disks.

    What is stored is what Siltstone's topics hold alive, three times, on disks that are 60 % full. Brokers
    are as many as disks or network ask for, or partitions, and three at least.
    """
    topics = outcome.workload.topics
    rates = [(each, stored_bytes_per_second(each)) for each in topics]
    written = sum(rate for _, rate in rates)
    read = sum(each.consumers * rate for each, rate in rates)
    sent = (REPLICAS - 1) * written + read
    limit = BROKER_MB_PER_SECOND * 1e6
    asked = {
        "disks": math.ceil(REPLICAS * written / limit),
        "network": math.ceil(sent / limit),
        "partitions": math.ceil(REPLICAS * outcome.workload.partition_count / BROKER_REPLICAS),
        "three zones": REPLICAS,
    }
    reason, brokers = max(asked.items(), key=lambda each: each[1])
    disk = outcome.mean("live_bytes") * REPLICAS / BROKER_DISK_FILL
    extra = max(0.0, BROKER_MB_PER_SECOND - prices.block_storage["free_mbps"])
    hour, zone = prices.compute["broker_hour"], prices.network["zone_gb"]
    away = 2 / 3
    return Bill(
        name="Kafka, three zones" + (", follower fetching" if follower_fetching else ""),
        lines=(
            Line(
                term="brokers",
                how=f"{brokers} at ${hour} an hour ({reason} ask for so many)",
                dollars=brokers * hour * HOURS,
            ),
            _volume("disks", disk, prices.block_storage["gb_month"]),
            Line(
                term="disks' throughput",
                how=f"{brokers} brokers with {extra:,.0f} MiB/s above what is free",
                dollars=brokers * extra * prices.block_storage["mbps_month"],
            ),
            _volume("producers to leaders, 2/3 from other zones", away * written * SECONDS, zone),
            _volume("replication, twice to other zones", (REPLICAS - 1) * written * SECONDS, zone),
            _volume(
                "leaders to consumers, 2/3 in other zones",
                0.0 if follower_fetching else away * read * SECONDS,
                zone,
            ),
        ),
    )


def _requests(term: str, count: float, price: float) -> Line:
    return Line(term=term, how=f"{count / 1e6:,.2f} million", dollars=count * price)


def _volume(term: str, size: float, price: float) -> Line:
    return Line(term=term, how=f"{size / GB:,.0f} GB at ${price}", dollars=size / GB * price)
