"""How fast an agent serves Kafka clients, and how much processor time it uses.

    python -m benchmarks.kafka_api [--json] [--quick] [--only PART …]

The agent is a separate process with default settings, an embedded catalog, and a local directory as its
object store. The load is librdkafka in this process, on the same cores. `loopback` is the same transport
without an agent, `disk` writes and syncs files of 8 MiB like the object store, and ratios compare with these.
Everything is fetched twice: from the agent that has just written it (the tail), and from a new one (the
object store). The cost of single requests is measured with a plain socket. It is the processor time of the
whole agent, including the kernel and the writing of files. `steps` divides the time in the agent's own code.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click
import orjson

from benchmarks.parts import kafka_limits, kafka_loads, kafka_steps, kafka_wire
from benchmarks.parts.kafka_process import Cluster
from benchmarks.parts.measuring import machine

PARTS = ("throughput", "steps", "cost", "idle", "many", "latency")


def _throughput(cluster: Cluster, *, quick: bool) -> dict[str, Any]:
    megabytes = 200 if quick else 1000
    loopback = kafka_wire.loopback_mb_per_second(megabytes)
    disk = kafka_limits.disk_mb_per_second(cluster.directory, megabytes)
    figures: dict[str, Any] = {"loopback": loopback, "disk": disk}
    with cluster.agent() as agent:
        figures["produce"] = kafka_loads.produce(agent, "plain", megabytes, idempotent=False)
        figures["produce_idempotent"] = kafka_loads.produce(agent, "idempotent", megabytes, idempotent=True)
        # This much certainly fits into the agent's memory.
        kafka_loads.produce(agent, "tail", 200, idempotent=False)
        readings = [kafka_loads.consume(agent, "tail") for _ in range(5)]
        figures["fetch_tail"] = sorted(readings, key=lambda each: each["mb_per_second"])[len(readings) // 2]
    with cluster.agent() as agent:
        figures["fetch_store"] = kafka_loads.consume(agent, "plain")
    for name, direction in (
        ("produce", "in"),
        ("produce_idempotent", "in"),
        ("fetch_tail", "out"),
        ("fetch_store", "out"),
    ):
        figures[name]["ratio_to_loopback"] = round(figures[name]["mb_per_second"] / loopback[direction], 3)
        if direction == "in":
            figures[name]["ratio_to_disk"] = round(figures[name]["mb_per_second"] / disk["in_parallel"], 3)
    return figures


def _steps(cluster: Cluster, *, quick: bool) -> dict[str, Any]:
    del cluster
    return kafka_steps.steps(20 if quick else 100)


def _cost(cluster: Cluster, *, quick: bool) -> dict[str, Any]:
    with cluster.agent() as agent:
        return kafka_wire.request_cost(agent, 1000 if quick else 4000)


def _idle(cluster: Cluster, *, quick: bool) -> dict[str, Any]:
    del quick
    with cluster.agent() as agent:
        return kafka_wire.idle_cost(agent, 1000)


def _many(cluster: Cluster, *, quick: bool) -> dict[str, Any]:
    with cluster.agent() as agent:
        return kafka_loads.many(agent, partitions=2000, clients=50, seconds=6 if quick else 60)


def _latency(cluster: Cluster, *, quick: bool) -> dict[str, Any]:
    figures = {}
    for linger_ms in (250, 50):
        name = f"{linger_ms}_ms"
        with cluster.agent(flush_interval_ms=linger_ms) as agent:
            figures[name] = kafka_loads.latency(agent, f"latency_{name}", records=200 if quick else 1500)
    return figures


_STEPS = {
    "throughput": _throughput,
    "steps": _steps,
    "cost": _cost,
    "idle": _idle,
    "many": _many,
    "latency": _latency,
}


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on the last line.")
@click.option("--quick", is_flag=True, help="Half a minute instead of several.")
@click.option("--only", "parts", type=click.Choice(PARTS), multiple=True, help="Run only these parts.")
def main(*, as_json: bool, quick: bool, parts: tuple[str, ...]) -> None:
    """Run the benchmark and print the report."""
    report: dict[str, Any] = {"benchmark": "kafka_api", "machine": machine()}
    for name in parts or PARTS:
        with tempfile.TemporaryDirectory() as directory, Cluster(Path(directory)) as cluster:
            report[name] = _STEPS[name](cluster, quick=quick)
    if as_json:
        print(orjson.dumps(report).decode())
        return
    for name in parts or PARTS:
        for what, figure in report[name].items():
            print(f"{name:10} {what:20} {figure}")


if __name__ == "__main__":
    main()
