"""Arithmetic of the comparison between counted and simulated requests."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.beside_reality.comparison import Row, compare
from benchmarks.beside_reality.measured import Figures, group_rounds, tally
from benchmarks.beside_reality.processes import AGENT, WATCHER
from benchmarks.beside_reality.run import problems
from benchmarks.beside_reality.simulated import simulations
from benchmarks.beside_reality.workload import SETTINGS, Duration, workload
from cost_model.engine.counts import Counts, Sample
from cost_model.engine.events import ObservedRound

_INGEST = "/reality/data/v2/80/ingest/session/file.seg"
_COMPACT = "/reality/data/v2/81/compact/job/file.seg"


def _row(reality: float, simulation: float, deviation: float = 0.0, *, is_bytes: bool = False) -> Row:
    return Row(label="", reality=reality, simulation=simulation, deviation=deviation, is_bytes=is_bytes)


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (_row(105, 100), "agrees"),
        (_row(95, 100), "agrees"),
        (_row(106, 100), "differs"),
        (_row(94, 100), "differs"),
        (_row(106, 100, deviation=3.1), "random"),
        (_row(106, 100, deviation=2.9), "differs"),
        (_row(7, 6.1), "random"),
        (_row(8, 6.1), "differs"),
        (_row(0, 0), "agrees"),
        (_row(1, 0), "differs"),
        (_row(6.9, 6, is_bytes=True), "differs"),
    ],
)
def test_differences_above_5_percent_must_be_within_the_random_error(row: Row, verdict: str) -> None:
    """One event more or less may be due to the moments at which measuring begins and ends."""
    assert row.verdict == verdict


def test_the_simulations_give_mean_and_deviation() -> None:
    simulated = [Figures(counts=Counts(put_ingest=count), sample=Sample(day=0.0)) for count in (90.0, 110.0)]
    rows = compare(Figures(counts=Counts(put_ingest=103), sample=Sample(day=0.0)), simulated)
    (puts,) = (row for row in rows if row.label == "PUT by agents")
    assert (puts.reality, puts.simulation, puts.ratio) == (103, 100, 1.03)
    assert puts.deviation == pytest.approx(14.14, abs=0.01)


def test_requests_are_counted_by_sender_and_object() -> None:
    found = tally(
        [
            _request("PUT", _INGEST, bytes_in=100),
            _request("GET", _INGEST, bytes_out=40),
            _request("GET", _INGEST, WATCHER, bytes_out=100),
            _request("PUT", _COMPACT, WATCHER, bytes_in=70),
            _request("GET", "/reality/data/siltstone-store.json", bytes_out=70),
            _request("GET", "/reality", query="list-type=2&prefix=x"),
            _request("GET", "/reality", query="uploads"),
            _request("POST", "/reality", query="delete", deleted=[_INGEST.removeprefix("/reality/")]),
            _request("HEAD", _INGEST, status=404),
        ]
    )
    assert found.counts == Counts(
        put_ingest=1,
        ingested_bytes=100,
        get_fetch=1,
        fetch_bytes=40,
        get_compaction=1,
        read_bytes=100,
        put_compaction=1,
        written_bytes=70,
        get_gc=1,
        list_gc=2,
        delete_calls=1,
        deleted_objects=1,
    )
    assert found.stored == {_COMPACT: 70}
    assert (found.others, found.failed) == (1, 1)


def test_a_multipart_upload_is_an_object_once_it_is_complete() -> None:
    parts = [
        _request("PUT", _COMPACT, WATCHER, query=f"uploadId=1&partNumber={number}", bytes_in=5)
        for number in (1, 2)
    ]
    begun = [_request("POST", _COMPACT, WATCHER, query="uploads"), *parts]
    assert tally(begun).stored == {}
    found = tally([*begun, _request("POST", _COMPACT, WATCHER, query="uploadId=1")])
    assert found.stored == {_COMPACT: 10}
    assert (found.counts.upload_requests, found.counts.written_bytes) == (4, 10)


def test_a_run_with_early_closes_or_failed_requests_is_invalid() -> None:
    """A hundredth of the files may be closed early."""
    assert problems({"closed_early": 1.0, "failed_requests": 0, "retries": 0.0}, files=100) == []
    found = problems({"closed_early": 2.0, "failed_requests": 1, "retries": 0.0}, files=100)
    assert found == ["failed_requests is 1, not 0", "2 of 100 files were closed early"]


def test_the_jobs_of_one_look_are_a_round() -> None:
    found = group_rounds([(1000, 9000), (1020, 7000), (1040, 9500), (9700, 12_000)])
    assert found == [
        ObservedRound(planned_ms=1000, published_ms=9500),
        ObservedRound(planned_ms=9700, published_ms=12_000),
    ]


def test_simulated_jobs_can_follow_those_of_a_running_system() -> None:
    """One round takes all files of a minute; a second one is not published within the measured time."""
    duration = Duration(warm_up_seconds=10, measured_seconds=80)
    rounds = [
        ObservedRound(planned_ms=60_000, published_ms=75_000),
        ObservedRound(planned_ms=76_000, published_ms=200_000),
    ]
    defined = workload(duration)
    for each in simulations(defined, SETTINGS, duration, runs=2, rounds=rounds, all_rounds=True):
        assert each.counts.jobs == 1
        assert each.counts.get_compaction == pytest.approx(2 * 154, abs=60)


def test_simulations_cover_the_measured_time() -> None:
    duration = Duration(warm_up_seconds=10, measured_seconds=40)
    first, second = simulations(workload(duration), SETTINGS, duration, runs=2)
    assert first.counts != second.counts
    for each in (first, second):
        assert each.counts.put_ingest == pytest.approx(103, abs=30)


def _request(
    method: str, path: str, sender: str = AGENT, *, query: str = "", status: int = 200, **values: object
) -> dict[str, Any]:
    sent = {"method": method, "path": path, "query": query, "status": status, "agent": f"Boto3 app/{sender}"}
    return {**sent, "bytes_in": 0, "bytes_out": 0, "deleted": [], **values}
