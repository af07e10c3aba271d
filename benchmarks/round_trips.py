"""How long one small request takes, where the time goes, and how much processor time it costs.

    python -m benchmarks.round_trips [--json] [--quick] [--only PART …]

The agent is a separate process with an embedded catalog, a local directory as its object store, and a flush
interval of 20 ms unless a part says otherwise. Every client has one request in flight.

- `produce`: requests with one record and acks=all on a plain socket. `librdkafka` is the same with that
  client (linger.ms=0). `rest_ms` is the median without the flush interval. The parts are means: `buffer` is
  the wait for the flush, `put` the upload with its wake-ups, `commit` the commit with its
  wake-ups, and `other` everything else: building the file, the response, the network.
- `low_rate`: the same requests on a plain socket with the default flush interval of 250 ms, and a PUT that
  takes 0, 30 and 100 ms longer. `over_ms` is the 99th percentile without the flush interval and without the
  99th percentile of the PUT, at most 10 ms on a machine without other load. `put_p99_ms`, `commit_p99_ms` and
  `other_p99_ms` are 99th percentiles of the parts of the same round trips. `sync_p99_ms` is a limit: that of
  8 KiB that are written to a file on the same disk and synced, once between two round trips.
- `groups`: requests of a member that is alone in its group: JoinGroup, SyncGroup, Heartbeat, OffsetCommit and
  OffsetFetch.
- `first`: processor time of a new agent until it serves, the times of the first requests of their kinds, and
  the processor time of all of them.
- `start`: seconds from the start of `siltstone agent` until it serves, at most 3 on a machine without other
  load. `new_directory` has no data yet, so the agent creates its private PostgreSQL. `known_directory` is the
  same directory after a stop. `running_catalog` is another agent in it, whose PostgreSQL runs already.
  Kernels are compiled before, as an installation does.
- `idle`: processor time per second without requests, and with 20 members of a group that send only
  heartbeats, as consumers of a quiet topic do.

`agent_cpu_ms` and `postgres_cpu_ms` are processor time per round trip, of all threads or processes, including
the kernel. `statements` are those of the catalog per round trip.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median, quantiles
from time import perf_counter, sleep
from typing import IO, TYPE_CHECKING, Any

import click
import orjson

from agent.group_settings import GroupSettings
from agent.kafka.codec import Struct
from agent.settings import AgentSettings
from benchmarks.parts import kafka_loads
from benchmarks.parts.kafka_process import Cluster
from benchmarks.parts.kafka_wire import Wire, request_frame
from benchmarks.parts.measuring import machine
from object_format.record_batch.records import Record, encode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.parts.kafka_process import AgentProcess

PARTS = ("produce", "low_rate", "groups", "first", "start", "idle")
_FLUSH_INTERVAL_MS = 20
_PUT_DELAYS_MS = (0, 30, 100)
_PRODUCE, _JOIN, _SYNC, _HEARTBEAT, _COMMIT, _FETCH = 9, 5, 3, 3, 7, 5
_TOPIC, _GROUP = "small", "round-trips"
_WARM_UP = 30
_IDLE_SECONDS = 10.0
_MEMBERS = 20


class _Meter:
    """Figures of agent and PostgreSQL while `work` runs many round trips."""

    def __init__(self, cluster: Cluster, agent: AgentProcess) -> None:
        self._cluster = cluster
        self._agent = agent

    def measure(self, work: Callable[[], object], count: int) -> dict[str, Any]:
        """Run `work` `count` times, sequentially."""
        for _ in range(_WARM_UP):
            work()
        metrics, agent, postgres = self._state()
        taken = []
        for _ in range(count):
            begin = perf_counter()
            work()
            taken.append((perf_counter() - begin) * 1000)
        metrics_after, agent_after, postgres_after = self._state()
        grown = {name: value - metrics.get(name, 0.0) for name, value in metrics_after.items()}
        return {
            "p50_ms": round(median(taken), 2),
            "p99_ms": round(quantiles(taken, n=100)[98], 2),
            "mean_ms": round(mean(taken), 2),
            "agent_cpu_ms": round((agent_after - agent) / count * 1000, 2),
            "postgres_cpu_ms": round((postgres_after - postgres) / count * 1000, 2),
            "statements": round(grown["siltstone_catalog_statements_total"] / count, 1),
            "grown": grown,
        }

    def _state(self) -> tuple[dict[str, float], float, float]:
        return self._agent.metrics(), self._agent.cpu_seconds(), self._cluster.postgres_cpu_seconds()

    def share_of_core(self, seconds: float, work: Callable[[], object]) -> dict[str, float]:
        """Return processor seconds per second while `work` is repeated once a second."""
        agent, postgres = self._agent.cpu_seconds(), self._cluster.postgres_cpu_seconds()
        begin = perf_counter()
        while (passed := perf_counter() - begin) < seconds:
            work()
            sleep(1.0)
        return {
            "agent_percent": round((self._agent.cpu_seconds() - agent) / passed * 100, 2),
            "postgres_percent": round((self._cluster.postgres_cpu_seconds() - postgres) / passed * 100, 2),
        }


class _Producer:
    """A producer of one record at a time, on a plain socket."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        batch = bytes(encode_records([Record(0, 1, None, bytes(100))]))
        data = [Struct(name=_TOPIC, partition_data=[Struct(index=0, records=batch)])]
        request = Struct(acks=-1, timeout=60_000, topic_data=data)
        self._frame = request_frame("produce", _PRODUCE, request)

    def send(self) -> None:
        """Send a record, and wait for its acknowledgement."""
        self._wire.send(self._frame)
        (topic,) = self._wire.response("produce", _PRODUCE).responses
        _require_success(topic.partition_responses[0].error_code, "produce")


def _produce(cluster: Cluster, agent: AgentProcess, count: int) -> dict[str, Any]:
    with Wire(agent.address) as wire:
        wired = _with_parts(_Meter(cluster, agent).measure(_Producer(wire).send, count))
    client = kafka_loads.producer(agent, **{"linger.ms": 0})

    def produce() -> None:
        client.produce(_TOPIC, bytes(100), partition=0)
        if client.flush(60):
            raise RuntimeError("a record was not acknowledged")

    return {"wire": wired, "librdkafka": _with_parts(_Meter(cluster, agent).measure(produce, count))}


def _low_rate(cluster: Cluster, _agent: AgentProcess, count: int) -> dict[str, Any]:
    return {f"PUT + {delay} ms": _low_rate_trips(cluster, delay, count) for delay in _PUT_DELAYS_MS}


def _low_rate_trips(cluster: Cluster, delay: int, count: int) -> dict[str, Any]:
    """Measure the parts of each round trip; metrics are read between two of them."""
    trips: list[dict[str, float]] = []
    syncs: list[float] = []
    with (
        cluster.agent(put_delay_ms=delay) as agent,
        Wire(agent.address) as wire,
        tempfile.TemporaryFile(dir=cluster.directory, buffering=0) as plain,
    ):
        producer = _Producer(wire)
        for number in range(-_WARM_UP // 3, count):
            before = agent.metrics()
            begin = perf_counter()
            producer.send()
            total = (perf_counter() - begin) * 1000
            after = agent.metrics()
            parts = {
                name: (after[key] - before[key]) * 1000
                for name in ("buffer", "put", "commit")
                for key in (f"siltstone_ingestion_{name}_seconds_sum",)
            }
            if number >= 0:
                trips.append({"total": total, **parts, "other": total - sum(parts.values())})
                syncs.append(_sync_ms(plain))
    p99 = {name: quantiles([trip[name] for trip in trips], n=100)[98] for name in trips[0]}
    interval = AgentSettings().flush_interval_ms
    return {
        "over_ms": round(p99["total"] - interval - p99["put"], 1),
        "p50_ms": round(median(trip["total"] for trip in trips), 1),
        "p99_ms": round(p99["total"], 1),
        **{f"{name}_p99_ms": round(p99[name], 1) for name in ("put", "commit", "other")},
        "sync_p99_ms": round(quantiles(syncs, n=100)[98], 1),
    }


def _sync_ms(file: IO[bytes]) -> float:
    """Write one page of PostgreSQL's WAL to the end of a file and sync it; return the milliseconds."""
    begin = perf_counter()
    file.write(bytes(8192))
    os.fdatasync(file.fileno())
    return (perf_counter() - begin) * 1000


def _with_parts(figures: dict[str, Any]) -> dict[str, Any]:
    """Add the parts of a round trip as means."""
    grown: dict[str, float] = figures.pop("grown")
    parts = {
        name: grown[f"siltstone_ingestion_{name}_seconds_sum"]
        / max(grown[f"siltstone_ingestion_{name}_seconds_count"], 1.0)
        for name in ("buffer", "put", "commit")
    }
    parts = {name: round(seconds * 1000, 2) for name, seconds in parts.items()}
    other = round(figures["mean_ms"] - sum(parts.values()), 2)
    rest = round(figures["p50_ms"] - _FLUSH_INTERVAL_MS, 2)
    return {"rest_ms": rest, **figures, "parts_ms": {**parts, "other": other}}


def _groups(cluster: Cluster, agent: AgentProcess, count: int) -> dict[str, Any]:
    meter = _Meter(cluster, agent)
    with Wire(agent.address) as wire:
        member = _Member(wire, _GROUP)
        member.join_and_sync()
        figures = {
            "join_and_sync": meter.measure(member.join_and_sync, count),
            "heartbeat": meter.measure(member.heartbeat, count),
            "offset_commit": meter.measure(member.commit, count),
            "offset_fetch": meter.measure(member.fetch, count),
        }
    for each in figures.values():
        del each["grown"]
    return figures


class _Member:
    """A member that is alone in its classic group."""

    def __init__(self, wire: Wire, group: str) -> None:
        self._wire = wire
        self._group = group
        self._id = ""
        self._generation = -1
        self._offset = 0

    def _call(self, name: str, version: int, request: Struct) -> Struct:
        self._wire.send(request_frame(name, version, request))
        return self._wire.response(name, version)

    def join_and_sync(self) -> None:
        """Become the leader of a new generation, and store an assignment."""
        if not self._id:
            self._join()  # the response has the member id
        response = self._join()
        _require_success(response.error_code, "join")
        self._generation = response.generation_id
        request = Struct(**self._identity(), assignments=[Struct(member_id=self._id, assignment=bytes(20))])
        _require_success(self._call("sync_group", _SYNC, request).error_code, "sync")

    def _join(self) -> Struct:
        self._offset += 1
        request = Struct(
            group_id=self._group,
            session_timeout=30_000,
            rebalance_timeout=30_000,
            member_id=self._id,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[Struct(name="range", metadata=self._offset.to_bytes(4, "big"))],
        )
        response = self._call("join_group", _JOIN, request)
        self._id = response.member_id
        return response

    def heartbeat(self) -> None:
        """Send a heartbeat."""
        response = self._call("heartbeat", _HEARTBEAT, Struct(**self._identity()))
        _require_success(response.error_code, "heartbeat")

    def commit(self) -> None:
        """Commit another offset."""
        self._offset += 1
        partition = Struct(
            partition_index=0,
            committed_offset=self._offset,
            committed_leader_epoch=-1,
            committed_metadata=None,
        )
        identity = self._identity()
        identity["generation_id_or_member_epoch"] = identity.pop("generation_id")
        request = Struct(**identity, topics=[Struct(name=_TOPIC, partitions=[partition])])
        response = self._call("offset_commit", _COMMIT, request)
        _require_success(response.topics[0].partitions[0].error_code, "commit")

    def fetch(self) -> None:
        """Fetch the committed offset."""
        request = Struct(group_id=self._group, topics=[Struct(name=_TOPIC, partition_indexes=[0])])
        _require_success(self._call("offset_fetch", _FETCH, request).error_code, "fetch")

    def _identity(self) -> dict[str, Any]:
        return {
            "group_id": self._group,
            "generation_id": self._generation,
            "member_id": self._id,
            "group_instance_id": None,
        }


def _first(_cluster: Cluster, agent: AgentProcess, _count: int) -> dict[str, Any]:
    until_ready = agent.cpu_seconds()
    before = agent.cpu_seconds()
    times = {}
    with Wire(agent.address) as wire:
        member = _Member(wire, f"{_GROUP}-first")
        for name, request in (
            ("produce", _Producer(wire).send),
            ("join_and_sync", member.join_and_sync),
            ("heartbeat", member.heartbeat),
            ("offset_commit", member.commit),
            ("offset_fetch", member.fetch),
        ):
            begin = perf_counter()
            request()
            times[f"{name}_ms"] = round((perf_counter() - begin) * 1000, 1)
    return {
        "until_ready": {"agent_cpu_seconds": round(until_ready, 2)},
        "requests": {**times, "agent_cpu_seconds": round(agent.cpu_seconds() - before, 2)},
    }


@contextmanager
def _started(directory: str, test_tools: str) -> Iterator[float]:
    """Run `siltstone agent`; yield the number of seconds until it serves.

    `test_tools` is the directory of `_hide_test_tools`.
    """
    command = [sys.executable, "-m", "siltstone", "agent", "--stop-on-eof", "--data-dir", directory]
    command += ["--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0"]
    environment = {**os.environ, "SILTSTONE_LOG_LEVEL": "error", "PYTHONPATH": test_tools}
    begin = perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("the agent did not start")
        yield perf_counter() - begin


def _hide_test_tools(directory: str) -> None:
    """Make modules in a directory that fail in place of test tools, which users do not have.

    The libraries for Kafka's messages and for kernels import them if they are installed.
    """
    for name in ("hypothesis", "coverage"):
        Path(directory, f"{name}.py").write_text("raise ImportError\n")


def _start(_cluster: Cluster, _agent: AgentProcess, count: int) -> dict[str, Any]:
    subprocess.run([sys.executable, "-m", "siltstone", "warm-kernels"], check=True, capture_output=True)
    taken: dict[str, list[float]] = {"new_directory": [], "known_directory": [], "running_catalog": []}
    for _ in range(5 if count > _WARM_UP * 2 else 3):
        with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as tools:
            _hide_test_tools(tools)
            with _started(directory, tools) as seconds:
                taken["new_directory"].append(seconds)
            with _started(directory, tools) as seconds, _started(directory, tools) as others:
                taken["known_directory"].append(seconds)
                taken["running_catalog"].append(others)
    return {
        name: {"median": round(median(each), 2), "least": round(min(each), 2), "most": round(max(each), 2)}
        for name, each in taken.items()
    }


def _require_success(error_code: int, what: str) -> None:
    if error_code:
        raise RuntimeError(f"{what} was rejected with error {error_code}")


def _idle(cluster: Cluster, agent: AgentProcess, count: int) -> dict[str, Any]:
    seconds = _IDLE_SECONDS if count > _WARM_UP * 2 else _IDLE_SECONDS / 2
    meter = _Meter(cluster, agent)
    sleep(2.0)
    alone = meter.share_of_core(seconds, lambda: None)
    wires = [Wire(agent.address) for _ in range(_MEMBERS)]
    members = [_Member(wire, f"{_GROUP}-{number}") for number, wire in enumerate(wires)]
    for member in members:
        member.join_and_sync()

    def send_heartbeats() -> None:
        for member in members:
            member.heartbeat()

    with_members = meter.share_of_core(seconds, send_heartbeats)
    for wire in wires:
        wire.close()
    return {"alone": alone, "with_members": with_members}


_STEPS = {
    "produce": _produce,
    "low_rate": _low_rate,
    "groups": _groups,
    "first": _first,
    "start": _start,
    "idle": _idle,
}


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on the last line.")
@click.option("--quick", is_flag=True, help="Fewer round trips.")
@click.option("--only", "parts", type=click.Choice(PARTS), multiple=True, help="Run only these parts.")
def main(*, as_json: bool, quick: bool, parts: tuple[str, ...]) -> None:
    """Run the benchmark and print the report."""
    report: dict[str, Any] = {"benchmark": "round_trips", "machine": machine()}
    settings: dict[str, Any] = {
        "flush_interval_ms": _FLUSH_INTERVAL_MS,
        "groups": GroupSettings(group_initial_rebalance_delay_ms=0),
    }
    with tempfile.TemporaryDirectory() as directory, Cluster(Path(directory)) as cluster:
        with cluster.agent() as agent:
            agent.create_topic(_TOPIC, 1)
        for name in parts or PARTS:
            with cluster.agent(**settings) as agent:
                report[name] = _STEPS[name](cluster, agent, 50 if quick else 300)
    if as_json:
        print(orjson.dumps(report).decode())
        return
    for name in parts or PARTS:
        for what, figure in report[name].items():
            print(f"{name:10} {what:15} {figure}")


if __name__ == "__main__":
    main()
