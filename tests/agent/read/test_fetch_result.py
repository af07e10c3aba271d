"""Results of fetches over offsets without records."""

from __future__ import annotations

from uuid import UUID

import pytest

from agent.read.batch_slicing import ServedBatches
from agent.read.fetch_plan import Cursor, PartitionFetch
from agent.read.fetch_result import result_of
from catalog.config.values import TopicConfig
from catalog.model import PartitionState, Topic
from object_format.record_batch.headers import read_header, verify_checksum

_TOPIC = Topic(topic_id=UUID(int=1), name="marl", partition_count=1, config=TopicConfig(), created_ms=0)


def _state(end: int) -> PartitionState:
    return PartitionState(
        topic_id=_TOPIC.topic_id,
        partition=0,
        log_start_offset=0,
        last_stable_offset=end,
        high_watermark=end,
        log_end_offset=end,
        leader_epoch=0,
        first_dirty_offset=0,
    )


@pytest.mark.parametrize(
    ("next_offset", "last_offset"), [(8, 7), (10, 9), (7 + 2**31, 6 + 2**31), (2**40, 6 + 2**31)]
)
def test_a_hole_is_returned_as_an_empty_batch(next_offset: int, last_offset: int) -> None:
    """The batch begins at the fetch offset, and covers the hole as far as one batch can."""
    fetch = PartitionFetch(topic=_TOPIC, partition=0, offset=7, max_bytes=0)
    result = result_of(Cursor(fetch, ServedBatches(next_offset), _state(2**40)))
    (batch,) = result.batches
    header = read_header(batch)
    verify_checksum(batch, header)
    assert (header.base_offset, header.last_offset, header.record_count) == (7, last_offset, 0)
    assert (result.size, result.next_offset) == (len(batch), next_offset)


def test_a_fetch_at_the_end_returns_no_batch() -> None:
    """No offset was skipped."""
    fetch = PartitionFetch(topic=_TOPIC, partition=0, offset=7, max_bytes=0)
    result = result_of(Cursor(fetch, ServedBatches(7), _state(7)))
    assert (list(result.batches), result.size) == ([], 0)
