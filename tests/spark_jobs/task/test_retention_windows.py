"""Records that expire at different times are written into separate extents."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from catalog.model import PartitionId
from object_format.codecs.codec import Codec
from object_format.dedupe import Survivors
from object_store.local.store import LocalStore
from spark_jobs.shuffle.plan import plan_shuffle
from spark_jobs.task.compaction_task import run_compaction
from spark_jobs.task.retention_windows import windows_of
from spark_jobs.task.small_sections.plan import GroupLimits
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import BatchToWrite
from tests.spark_jobs.shuffle.shuffle_in_memory import run_in_memory

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.model import JobResult, JobSpec

RETENTION_MS = 8_000
WINDOW_MS = RETENTION_MS // 4
STEP_MS = 900


@given(
    st.lists(st.integers(-1, 40_000), min_size=1, max_size=30),
    st.integers(0, 10_000),
    st.integers(0, 40_000),
)
@example(newest_ms=list(range(101)), retention_ms=7, now_ms=100)
@example(newest_ms=list(range(101)), retention_ms=40, now_ms=99)
def test_windows_are_few_and_short(newest_ms: list[int], retention_ms: int, now_ms: int) -> None:
    """The unexpired parts of a window span at most a quarter of the retention time.

    The time of a part is that of the newest record so far.
    """
    windows = windows_of(newest_ms, retention_ms, now_ms)

    assert all(one <= other for one, other in pairwise(windows))
    assert len(set(windows)) <= 6
    so_far = list(accumulate(newest_ms, max))
    for _, group in groupby(zip(so_far, windows, strict=True), key=lambda each: each[1]):
        unexpired = [
            min(newest, now_ms) for newest, _ in group if newest > now_ms - retention_ms and newest >= 0
        ]
        if unexpired:
            assert unexpired[-1] - unexpired[0] <= retention_ms // 4


@given(st.lists(st.integers(0, 40_000), min_size=1), st.integers(4, 10_000), st.integers(0, 40_000))
def test_windows_start_at_fixed_times(newest_ms: list[int], retention_ms: int, now_ms: int) -> None:
    """As time passes, parts of two windows come together only after both have expired."""
    newest_ms = [min(each, now_ms) for each in newest_ms]
    for later_ms in (now_ms + 1, now_ms + retention_ms // 3):
        before, after = (windows_of(newest_ms, retention_ms, at) for at in (now_ms, later_ms))
        for index, (one, other) in enumerate(pairwise(after)):
            if one == other and before[index] != before[index + 1]:
                assert max(newest_ms[: index + 2]) <= later_ms - retention_ms


@pytest.mark.parametrize(
    ("newest_ms", "retention_ms", "now_ms", "expected"),
    [
        ([0, 999, 2000, 5999, 6000, 9000], 8000, 9000, [0, 0, 1, 2, 3, 4]),
        ([5000, 3000, 7999, 8000], 8000, 9000, [2, 2, 3, 4]),  # a part is as new as the parts before it
        ([0, 12_000, 20_000, 90_000], 8000, 21_000, [5, 6, 10, 10]),  # expired parts, and one from the future
        ([-1, -1, 4000, -1], 8000, 9000, [2, 2, 2, 2]),
        ([-1, 0, 5], 4, 9, [4, 4, 5]),
        ([-1], 4, 3, [0]),
        ([0, 1, 2], 1, 2, [0, 1, 2]),
        ([0, 1, 2], 5, 2, [0, 0, 1]),  # a quarter is rounded up
    ],
)
def test_the_windows_of_examples(
    newest_ms: list[int], retention_ms: int, now_ms: int, expected: list[int]
) -> None:
    assert windows_of(newest_ms, retention_ms, now_ms) == expected


def test_windows_of_batches_that_pass_1_has_filtered_need_one_pass(tmp_path: Path) -> None:
    """Each window has parts that pass 1 has decompressed, and one that pass 2 must read."""
    harness = CompactionHarness(tmp_path)
    key = PartitionId(harness.topic("compact,delete"), 0)
    for number, codec in enumerate([Codec.ZSTD, Codec.NONE, Codec.ZSTD] * 2):
        now_ms = harness.clock.now_ms()
        records = tuple((now_ms, name, b"%d" % number, ()) for name in (b"%d" % number, b"again"))
        harness.log.ingest({key: [BatchToWrite(records, codec)]})
        harness.clock.advance(WINDOW_MS / 1000 if number == 2 else 0)
    spec = _expiring(harness.log.job())

    result = harness.run(spec)

    harness.log.publish(spec, result)
    assert harness.log.read(key) == harness.log.expected(key)
    assert [extent.record_count for file in result.files for extent in file.extents] == [3, 4]
    assert (result.counts["get_requests"], result.counts["input_files_read_once"]) == (8, 4)


def test_the_survivors_of_one_window_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may take as much memory as the bitmap of a partition."""
    harness = CompactionHarness(tmp_path)
    keys = [PartitionId(harness.topic(policy), 0) for policy in ("compact", "delete")]
    harness.log.ingest({key: [_batch(1, (b"a", b"1"), (b"a", b"2"))] for key in keys})

    def refuse(*_arguments: object) -> None:
        raise AssertionError("survivors are copied")

    monkeypatch.setattr(Survivors, "between", refuse)
    spec = harness.log.job()
    run_compaction(
        spec,
        harness.log.store,
        attempt_id=harness.ids.new_uuid(),
        clock=harness.clock,
        ids=harness.ids,
        limits=GroupLimits(bytes=0),
    )


@pytest.mark.parametrize("plan", ["task", "shuffle"])
def test_a_partition_expires_although_it_is_compacted_often(tmp_path: Path, plan: str) -> None:
    """Each step writes a new key and a repeated key, then compacts; two partitions share the files."""
    harness = CompactionHarness(tmp_path)
    log = harness.log
    topic = harness.topic("compact,delete")
    keys = [PartitionId(topic, number) for number in range(2)]
    ages = []
    for step in range(30):
        now_ms = harness.clock.now_ms()
        log.ingest({key: [_batch(now_ms, (b"new-%d" % step, b"x"), (b"again", b"y"))] for key in keys})
        spec = _expiring(log.job())
        result = _run(harness, spec, plan)
        log.publish(spec, result)
        for key in keys:
            assert log.read(key) == log.expected(key)
            assert all(one.last_offset + 1 == two.base_offset for one, two in pairwise(log.extents[key]))
            assert plan == "shuffle" or len(log.extents[key]) <= 6
            _expire(harness, key)
            ages.append(now_ms - min(record.timestamp for record in log.read(key)))
        assert plan == "shuffle" or len(result.files) <= 6
        assert all(extent.unique_keys for file in result.files for extent in file.extents)
        harness.clock.advance(STEP_MS / 1000)
    assert RETENTION_MS - STEP_MS < max(ages) <= RETENTION_MS + WINDOW_MS


def test_a_copied_partition_stays_in_one_extent(tmp_path: Path) -> None:
    """The planner limits the time that such a partition spans."""
    harness = CompactionHarness(tmp_path)
    key = PartitionId(harness.topic("delete"), 0)
    for _ in range(3):
        harness.log.ingest({key: [_batch(harness.clock.now_ms(), (b"a", b"1"))]})
        harness.clock.advance(WINDOW_MS / 500)
    (file,) = harness.run(_expiring(harness.log.job())).files
    assert len(file.extents) == 1


def _batch(timestamp: int, *pairs: tuple[bytes, bytes]) -> BatchToWrite:
    return BatchToWrite(tuple((timestamp, key, value, ()) for key, value in pairs))


def _expiring(spec: JobSpec) -> JobSpec:
    return replace(
        spec,
        partitions=tuple(
            replace(each, expires_after_ms=RETENTION_MS, reaches_log_start=True) for each in spec.partitions
        ),
    )


def _run(harness: CompactionHarness, spec: JobSpec, plan: str) -> JobResult:
    if plan == "task":
        return harness.run(spec)
    return run_in_memory(
        spec, plan_shuffle(spec), lambda: LocalStore(harness.directory, harness.ids), harness.ids
    )


def _expire(harness: CompactionHarness, key: PartitionId) -> None:
    """Remove whole extents, the oldest first, as the catalog does."""
    log, horizon_ms = harness.log, harness.clock.now_ms() - RETENTION_MS
    while log.extents[key][0].max_timestamp < horizon_ms:
        start = log.extents[key].pop(0).last_offset + 1
        log.records[key] = [each for each in log.records[key] if each.record.offset >= start]
