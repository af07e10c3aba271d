"""Counters of a task: times, requests of its store, and peak memory."""

from __future__ import annotations

import resource
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from core.clock import ManualClock
from core.ids import SeededIds
from object_store.accounting import Purpose, RequestKind
from object_store.local.store import LocalStore
from spark_jobs.task import counts as counts_module
from spark_jobs.task.counts import TaskCounts, peak_rss_bytes, reset_peak

if TYPE_CHECKING:
    from pathlib import Path


def test_times_are_added_in_milliseconds_and_codecs_are_no_part_of_kernels() -> None:
    clock = ManualClock()
    counts = TaskCounts(None, clock)
    for seconds in (1.0, 0.25):
        with counts.timed("kernels_ms"):
            clock.advance(seconds)
            with counts.codec_timers.decompress():
                clock.advance(0.5)
            with counts.codec_timers.compress():
                clock.advance(0.125)
    with pytest.raises(KeyError), counts.timed("write_ms"):
        _advance_and_fail(clock)

    found = counts.finish()

    assert {name: found[name] for name in found if name.endswith("_ms")} == {
        "kernels_ms": 1250,
        "decompress_ms": 1000,
        "compress_ms": 250,
        "write_ms": 2000,
    }


def _advance_and_fail(clock: ManualClock) -> None:
    clock.advance(2.0)
    raise KeyError("an error")


def test_counters_add_up_and_peaks_keep_the_highest() -> None:
    counts = TaskCounts(None, ManualClock())
    for number in (2, 5, 3):
        counts.add("partitions", number)
        counts.at_least("largest_buffer_bytes", number)
    counts.add_aborted(4)

    found = counts.finish()

    assert (found["partitions"], found["largest_buffer_bytes"]) == (10, 5)
    assert [found[name] for name in ("records_in", "records_dropped", "records_aborted")] == [4, 4, 4]


def test_only_requests_of_the_task_count_and_neither_resumes_nor_reads_of_an_index(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, SeededIds(1, ManualClock()))
    get, put = RequestKind.GET, RequestKind.PUT
    store.counts.record(get, Purpose.COMPACTION, requests=100, bytes_in=100, retries=100, resumes=100)
    counts = TaskCounts(store, ManualClock())
    store.counts.record(get, Purpose.COMPACTION, requests=9, bytes_in=50, retries=1, resumes=2)
    store.counts.record(put, Purpose.COMPACTION, requests=1, bytes_out=70, retries=3)
    store.counts.record(get, Purpose.CHECK, requests=1, bytes_in=5)
    counts.add("index_reads", 3)

    found = counts.finish()
    store.close()

    expected = {"get_requests": 4, "resumes": 2, "retries": 4, "bytes_in": 50, "bytes_out": 70}
    assert {name: found[name] for name in expected} == expected


def test_peak_memory_is_that_of_linux_since_the_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, clear_refs = tmp_path / "status", tmp_path / "clear_refs"
    status.write_text("Name:\tpython\nVmHWM:\t    12 kB\nVmRSS:\t    9 kB\n")
    monkeypatch.setattr(counts_module, "_STATUS", status)
    monkeypatch.setattr(counts_module, "_CLEAR_REFS", clear_refs)

    reset_peak()

    assert clear_refs.read_text() == "5"  # proc(5): the peak resident set size
    assert peak_rss_bytes() == 12 * 1024


@pytest.mark.parametrize(("platform", "expected"), [("linux", 7 * 1024), ("darwin", 7)])
def test_without_that_file_peak_memory_is_that_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, expected: int
) -> None:
    """getrusage(2) counts KiB, except on macOS."""
    missing = tmp_path / "no directory" / "file"
    monkeypatch.setattr(counts_module, "_STATUS", missing)
    monkeypatch.setattr(counts_module, "_CLEAR_REFS", missing)
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=7))
    monkeypatch.setattr(sys, "platform", platform)

    reset_peak()

    assert peak_rss_bytes() == expected
