"""Random logs with a history: appended files, finished and abandoned jobs, claimed extents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st

from catalog.model import Exactness
from planner.policy import make_plan
from planner.settings import PlannerSettings
from tests.planner.model_log import NEVER_MS, Chunk, ModelLog, topic_rules

if TYPE_CHECKING:
    from catalog.model import PartitionId
    from planner.snapshot import TopicRules

THOROUGH = settings(max_examples=max(100, settings().max_examples))
"""For cheap comparisons whose borders few examples meet."""

AGES_MS = st.sampled_from([0, 10, 1_000, 100_000])

SETTINGS = st.builds(
    PlannerSettings,
    max_job_input_bytes=st.sampled_from([1, 700, 3_000, 1_000_000]),
    max_job_files=st.integers(1, 6),
    max_job_extents=st.sampled_from([1, 4, 1_000]),
    min_ingestion_files=st.integers(1, 3),
    max_ingestion_age_ms=st.sampled_from([0, 500]),
    min_ingestion_bytes=st.sampled_from([100, 1 << 30]),
    min_cleaning_bytes=st.sampled_from([1, 1 << 30]),
    max_cleaning_age_ms=st.sampled_from([0, 500]),
    paced=st.booleans(),
    target_file_bytes=st.sampled_from([1, 300, 2_000]),
    merge_fan_in=st.integers(2, 4),
    max_plan_extents=st.sampled_from([8, 32_000]),
    section_bytes=st.sampled_from([1, 60, 2_000]),
    section_floor_bytes=st.sampled_from([10, 50]),
    level_floor_bytes=st.sampled_from([1, 50, 400]),
    dead_share=st.sampled_from([0.3, 0.5, 1.0]),
    min_dead_bytes=st.sampled_from([1, 100]),
    force=st.booleans(),
)

CHUNKS = st.builds(
    Chunk,
    records=st.integers(1, 5),
    length=st.sampled_from([0, 10, 100, 300]),
    age_ms=AGES_MS,
    span_ms=st.sampled_from([0, 0, 400, 10_000]),
)


@st.composite
def any_rules(draw: st.DrawFn, number: int) -> TopicRules:
    return topic_rules(
        number,
        cleanup_policy=draw(st.sampled_from(["compact", "delete", "compact,delete"])),
        min_cleanable_dirty_ratio=draw(st.sampled_from([0.0, 0.5, 1.0])),
        min_compaction_lag_ms=draw(st.sampled_from([0, 0, 500])),
        max_compaction_lag_ms=draw(st.sampled_from([NEVER_MS, 5_000])),
    )


@st.composite
def logs(draw: st.DrawFn) -> ModelLog:
    count = draw(st.integers(1, 3))
    log = ModelLog(
        rules=[draw(any_rules(number)) for number in range(count)],
        partition_count=draw(st.integers(1, 2)),
        kept_percent=draw(st.sampled_from([0, 50, 100])),
    )
    keys = sorted(log.extents)
    for _ in range(draw(st.integers(0, 3))):
        for _ in range(draw(st.integers(0, 5))):
            chunks = draw(st.dictionaries(st.sampled_from(keys), CHUNKS, min_size=1, max_size=4))
            log.append(chunks, age_ms=draw(AGES_MS))
        for job in make_plan(log.snapshot(), draw(SETTINGS)).jobs:
            if draw(st.booleans()):
                log.apply(job)
    for key in draw(st.lists(st.sampled_from(keys), unique=True, max_size=2)):
        log.unstable[key] = draw(st.integers(1, 6))
    if draw(st.booleans()):
        for job in make_plan(log.snapshot(), draw(SETTINGS)).jobs[:1]:
            log.claim(job)
    for key in draw(st.lists(st.sampled_from(keys), unique=True, max_size=1)):
        log.exactness[key] = draw(st.sampled_from(Exactness))
    for key in draw(st.lists(st.sampled_from(keys), unique=True, max_size=1)):
        _delete_records(draw, log, key)
    return log


def _delete_records(draw: st.DrawFn, log: ModelLog, key: PartitionId) -> None:
    """Move the log start into the log, and remove the extents below it."""
    if log.extents[key]:
        start = draw(st.integers(0, log.end(key) - 1))
        log.log_start[key] = start
        log.extents[key] = [extent for extent in log.extents[key] if extent.last_offset >= start]
