"""Monthly cost in dollars: of Siltstone on an object store, and of Kafka on disks in three zones.

Each line of a bill explains its calculation. Storage is the mean of the last month, and requests are those of
that month.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cost_model.rates.steady_rates import stored_bytes_per_second
from cost_model.report.prices import GIB

if TYPE_CHECKING:
    from cost_model.engine.outcome import Outcome
    from cost_model.report.prices import Prices, StorePrices

HOURS: Final = 730.0
SECONDS: Final = HOURS * 3600
ROW_BYTES: Final = 300
"""Size of a catalog row, with its share of the indexes."""

CATALOG_SERVERS: Final = 2
DISK_HEADROOM: Final = 2.0
TASK_UTILIZATION: Final = 0.7

REPLICAS: Final = 3
BROKER_DISK_FILL: Final = 0.6
BROKER_MB_PER_SECOND: Final = 250.0
"""Maximum that a broker of 16 vCPU writes or sends: 40 % of its bandwidth to gp3 disks, 5 Gbit/s."""

BROKER_REPLICAS: Final = 4_000
"""Maximum number of partition replicas on one broker that Kafka's operators recommend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BillLine:
    """One term of a bill, and its calculation as text."""

    term: str
    calculation: str
    dollars: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Monthly cost of one system."""

    name: str
    lines: tuple[BillLine, ...]

    @property
    def dollars(self) -> float:
        """Sum of all lines."""
        return sum(line.dollars for line in self.lines)


def siltstone_bill(outcome: Outcome, prices: Prices, *, express: bool) -> Bill:
    """Return the cost of the simulated system on S3 Standard or on S3 Express One Zone."""
    store = prices.s3_express if express else prices.s3_standard
    name = "Siltstone on S3 Express One Zone" if express else "Siltstone on S3 Standard"
    return Bill(name=name, lines=(*_store_lines(outcome, store), *_server_lines(outcome, prices)))


def _store_lines(outcome: Outcome, store: StorePrices) -> list[BillLine]:
    month, stored = outcome.month, outcome.mean("stored_bytes")
    gets = month.get_compaction + month.get_gc
    put, get = store.put_thousand / 1000, store.get_thousand / 1000
    lines = [
        BillLine(term="storage", calculation=f"{stored / GIB:,.0f} GiB", dollars=store.storage(stored)),
        _requests("PUT by agents", month.put_ingest, put),
        _requests("PUT and parts of uploads by jobs", month.upload_requests, put),
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


def _server_lines(outcome: Outcome, prices: Prices) -> list[BillLine]:
    workload, month = outcome.workload, outcome.month
    agent, task = prices.compute["agent_hour"], prices.compute["task_vcpu_hour"]
    catalog = prices.compute["catalog_hour"]
    busy = (month.read_bytes + month.written_bytes) / (workload.task_mb_per_second * 1e6) / SECONDS
    cores = busy / TASK_UTILIZATION
    disk = outcome.mean("rows") * ROW_BYTES * DISK_HEADROOM * CATALOG_SERVERS
    cross_zone_bytes = 0.0
    if not workload.zone_aware and workload.zones > 1:
        remote_share = 1 - 1 / workload.zones
        cross_zone_bytes = sum(
            remote_share * (1 + each.consumers) * stored_bytes_per_second(each) * SECONDS
            for each in workload.topics
        )
    return [
        BillLine(
            term="agents",
            calculation=f"{workload.agents} at ${agent} an hour",
            dollars=workload.agents * agent * HOURS,
        ),
        BillLine(
            term="compaction",
            calculation=f"{cores:,.1f} vCPU at ${task} an hour, {busy:,.1f} of them busy",
            dollars=cores * task * HOURS,
        ),
        BillLine(
            term="catalog",
            calculation=f"{CATALOG_SERVERS} PostgreSQL servers at ${catalog} an hour",
            dollars=CATALOG_SERVERS * catalog * HOURS,
        ),
        _volume("catalog disks", disk, prices.block_storage["gb_month"]),
        _volume("traffic between zones", cross_zone_bytes, prices.network["zone_gb"]),
    ]


def kafka_bill(outcome: Outcome, prices: Prices, *, follower_fetching: bool) -> Bill:
    """Return the cost of the same workload on Kafka with three replicas in three zones, on gp3 disks.

    The disks hold the live bytes of Siltstone's topics three times and are 60 % full. Disk throughput,
    network or the number of partitions determines how many brokers there are, at least three.
    """
    topics = outcome.workload.topics
    rates = [(each, stored_bytes_per_second(each)) for each in topics]
    written = sum(rate for _, rate in rates)
    read = sum(each.consumers * rate for each, rate in rates)
    sent = (REPLICAS - 1) * written + read
    limit = BROKER_MB_PER_SECOND * 1e6
    brokers_by_reason = {
        "disks": math.ceil(REPLICAS * written / limit),
        "network": math.ceil(sent / limit),
        "partitions": math.ceil(REPLICAS * outcome.workload.partition_count / BROKER_REPLICAS),
        "three zones": REPLICAS,
    }
    reason, brokers = max(brokers_by_reason.items(), key=lambda each: each[1])
    disk = outcome.mean("live_bytes") * REPLICAS / BROKER_DISK_FILL
    extra_mib = max(0.0, BROKER_MB_PER_SECOND - prices.block_storage["free_mbps"])
    hour, zone = prices.compute["broker_hour"], prices.network["zone_gb"]
    remote_share = 2 / 3
    return Bill(
        name="Kafka, three zones" + (", follower fetching" if follower_fetching else ""),
        lines=(
            BillLine(
                term="brokers",
                calculation=f"{brokers} at ${hour} an hour (set by {reason})",
                dollars=brokers * hour * HOURS,
            ),
            _volume("disks", disk, prices.block_storage["gb_month"]),
            BillLine(
                term="disk throughput",
                calculation=f"{brokers} brokers with {extra_mib:,.0f} MiB/s above the free throughput",
                dollars=brokers * extra_mib * prices.block_storage["mbps_month"],
            ),
            _volume("producers to leaders, 2/3 from other zones", remote_share * written * SECONDS, zone),
            _volume("replication, twice to other zones", (REPLICAS - 1) * written * SECONDS, zone),
            _volume(
                "leaders to consumers, 2/3 in other zones",
                0.0 if follower_fetching else remote_share * read * SECONDS,
                zone,
            ),
        ),
    )


def _requests(term: str, count: float, price: float) -> BillLine:
    return BillLine(term=term, calculation=f"{count / 1e6:,.2f} million", dollars=count * price)


def _volume(term: str, size: float, price: float) -> BillLine:
    return BillLine(term=term, calculation=f"{size / GIB:,.0f} GiB at ${price}", dollars=size / GIB * price)
