"""Compare the counted requests and bytes of a small running system with the simulation of the same workload.

    python -m benchmarks.cost --beside-reality [--minutes M] [--quick] [--observed-rounds] [--json]

Three agents in three zones, a watcher, PostgreSQL and an S3 server run on loopback. Producers send 18 batches
of 3 KB per second to 18 partitions in all: a topic with retention, and two compacted ones with uniform and
with Zipf-distributed keys. A consumer in each zone reads a third of the partitions at the tail. The flush
interval is a second, so that all processes and the S3 server leave most of two cores idle. All requests are
counted at the S3 server, by kind, sender and object. Those of a warm-up (two minutes) do not count.

Then every event of the same workload is simulated several times (`simulate --exact`). The table has a row
for each kind:

- `reality`: the count of the measured time (ten minutes), or the state at its end. The simulations' state is
  that with as many files that wait for a job, because the phase of jobs is random.
- `simulation`: the mean of the simulations. `±`: two standard deviations of one simulation, in percent.
- `ratio`: reality divided by simulation.
- `verdict`: `agrees` within 5 %; `random` if the difference is larger, but within two standard deviations.
  Random arrivals, and the phases of jobs and of periodic tasks, make these counts different in each run.
  Otherwise `differs`, and the exit code is 1.

A watcher looks for work every second, and makes a job of fifty files. On a busy machine, a job takes
longer than the files of the next one need to arrive, which no simulation knows. With `--observed-rounds`, the
simulated watcher plans and publishes jobs when the real one did, but decides itself what they do.

A run is invalid, and fails, if a batch was rejected, if requests failed or were sent again, or if more than
1 % of the files were closed early: the producers' rates are too low for that, unless the machine stalls.
The table is followed by what may explain differences: hedged requests, and the processor time that was left.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from benchmarks.beside_reality.clients import Clients
from benchmarks.beside_reality.comparison import TOLERANCE, compare
from benchmarks.beside_reality.measured import catalog_state, figures_of, observed_rounds, tally
from benchmarks.beside_reality.processes import running_system
from benchmarks.beside_reality.simulated import simulations
from benchmarks.beside_reality.workload import SETTINGS, Duration, workload
from benchmarks.parts.measuring import machine
from core.clock import SystemClock
from core.quantities import human_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

    from benchmarks.beside_reality.comparison import Row
    from benchmarks.beside_reality.measured import Figures
    from benchmarks.beside_reality.processes import RunningSystem
    from cost_model.engine.events import ObservedRound
    from cost_model.workload.definition import Workload

_WARM_UP_SECONDS: Final = 120.0
_QUICK_WARM_UP_SECONDS: Final = 60.0
_FIRST_JOB_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.5
_EARLY_SHARE: Final = 0.01
_LEAST: Final = 20
"""Batches that are acknowledged and read in the measured time, however short it is."""


def measure(
    defined: Workload, duration: Duration, directory: Path, *, seed: int = 1, compact: bool = True
) -> tuple[Figures, list[ObservedRound], dict[str, Any]]:
    """Run the workload; return its figures, the rounds of the watcher, and facts about the run.

    The warm-up ends at least its time after the first job, because the start of Spark takes a while. Without
    `compact` there is no watcher.
    """
    with running_system(defined, SETTINGS, directory, compact=compact) as system:
        clients = Clients(defined, system.kafka, seed)
        with clients.running():
            begun, begun_ms = time.monotonic(), SystemClock().now_ms()
            if compact:
                _wait_for_first_job(system, clients)
            _run_for(duration.warm_up_seconds, clients)
            begin = tally(system.s3.requests())
            warmed_up = time.monotonic() - begun
            jobs_before = catalog_state(system.catalog_url).jobs
            sent, before = clients.sent, _agents_did(system)
            acknowledged, read = clients.acknowledged, clients.records_read
            psutil.cpu_percent()
            _run_for(duration.measured_seconds, clients)
            while clients.acknowledged < acknowledged + _LEAST or clients.records_read < read + 10 * _LEAST:
                _run_for(_POLL_SECONDS, clients)  # only in a short run on a busy machine
            end = tally(system.s3.requests())
            ended = time.monotonic() - begun
            state = catalog_state(system.catalog_url)
            rounds = observed_rounds(system.catalog_url, begun_ms)
            facts = {
                "warm_up_seconds": warmed_up,
                "measured_seconds": ended - warmed_up,
                "batches": clients.sent - sent,
                "batches_in_flight": clients.sent - clients.acknowledged,
                "failed_requests": end.failed - begin.failed,
                "processor_percent": psutil.cpu_percent(),
                "rows": dict(state.rows),
                "jobs": {
                    reason: number - jobs_before.get(reason, 0) for reason, number in state.jobs.items()
                },
                **{name: value - before[name] for name, value in _agents_did(system).items()},
            }
    return figures_of(begin, end, jobs_before, state), rounds, facts


def _agents_did(system: RunningSystem) -> dict[str, float]:
    """Return counts of agents that explain differences: early closes, hedges, and retries of requests."""
    return {
        "closed_early": sum(
            system.agent_metric("siltstone_ingestion_files_closed_total", f'reason="{reason}"')
            for reason in ("stalled", "idle")
        ),
        "hedges": system.agent_metric("siltstone_store_hedges_total"),
        "retries": system.agent_metric("siltstone_store_retries_total"),
    }


def _wait_for_first_job(system: RunningSystem, clients: Clients) -> None:
    deadline = time.monotonic() + _FIRST_JOB_SECONDS
    while not catalog_state(system.catalog_url).jobs:
        if time.monotonic() > deadline:
            log = (system.logs / "watcher.log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the watcher completed no job in {_FIRST_JOB_SECONDS:g} s: {log}")
        _run_for(1.0, clients)


def _run_for(seconds: float, clients: Clients) -> None:
    """Wait; raise RuntimeError if a client has ended with an error."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(_POLL_SECONDS, left))
        if clients.failures:
            raise RuntimeError(f"a client failed: {clients.failures[0]}")


def problems(facts: Mapping[str, Any], files: float) -> list[str]:
    """Return why a run with that many files is invalid; nothing if it is valid."""
    found = [f"{name} is {facts[name]:g}, not 0" for name in ("failed_requests", "retries") if facts[name]]
    if facts["closed_early"] > _EARLY_SHARE * files:
        found.append(f"{facts['closed_early']:g} of {files:g} files were closed early")
    return found


def print_table(rows: Sequence[Row], facts: Mapping[str, Any]) -> None:
    """Print the comparison as a Markdown table, and the facts about the run below it."""
    print("| kind | reality | simulation | ± | ratio | verdict |")
    print("|---|---:|---:|---:|---:|---|")
    for row in rows:
        shown = [
            human_bytes(value) if row.is_bytes else f"{value:,.0f}" for value in (row.reality, row.simulation)
        ]
        print(
            f"| {row.label} | {shown[0]} | {shown[1]} | {row.random_share:.0%} | {row.ratio:.3f}"
            f" | {row.verdict} |"
        )
    print()
    for name, value in facts.items():
        print(f"{name}: {value:,.1f}" if isinstance(value, float) else f"{name}: {value}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, simulate and compare; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cost --beside-reality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="measured time [default: 10]")
    parser.add_argument("--quick", action="store_true", help="measure two minutes after a short warm-up")
    parser.add_argument(
        "--observed-rounds", action="store_true", help="simulate jobs at the times of the real ones"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    duration = Duration(
        warm_up_seconds=_QUICK_WARM_UP_SECONDS if options.quick else _WARM_UP_SECONDS,
        measured_seconds=120.0 if options.quick else options.minutes * 60,
    )
    signal.signal(signal.SIGTERM, _interrupt)
    with tempfile.TemporaryDirectory(prefix="siltstone-reality-") as directory:
        reality, rounds, facts = measure(workload(duration), duration, Path(directory))
    taken = Duration(warm_up_seconds=facts["warm_up_seconds"], measured_seconds=facts["measured_seconds"])
    simulated = simulations(
        workload(taken),
        SETTINGS,
        taken,
        rounds=rounds,
        all_rounds=options.observed_rounds,
        waiting_files=None if options.observed_rounds else reality.sample.waiting_files,
    )
    rows = compare(reality, simulated)
    invalid = problems(facts, reality.counts.put_ingest)
    differing = [row.label for row in rows if row.verdict == "differs"]
    if options.json:
        report = {
            "benchmark": "beside_reality",
            "machine": machine(),
            "facts": facts,
            "invalid": invalid,
            "rows": [row.as_dict() for row in rows],
        }
        print(json.dumps(report))
    else:
        print_table(rows, facts)
    for problem in invalid:
        print(f"the run is invalid: {problem}", file=sys.stderr)
    if differing:
        print(f"more than {TOLERANCE:.0%} apart: {', '.join(differing)}", file=sys.stderr)
    return 1 if differing or invalid else 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
