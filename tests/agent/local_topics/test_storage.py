"""Local logs across restarts of the process."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING
from uuid import UUID

from agent.local_topics.log_config import log_config_of
from agent.local_topics.storage import LocalStorage, StorageIdentity
from catalog.config.values import TopicConfig
from catalog.model import Topic
from core.clock import SystemClock
from core.ids import SystemIds
from local_tier.topic_partition import TopicPartition
from tests.local_tier.batches import batch, offsets_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ROCK = Topic(
    topic_id=UUID(int=5),
    name="rock",
    partition_count=1,
    config=TopicConfig((("storage.mode", "local"),)),
    created_ms=0,
)


class _Topics:
    def list(self) -> Sequence[Topic]:
        return [ROCK]


def _storage(directory: Path) -> LocalStorage:
    clock = SystemClock()
    identity = StorageIdentity(cluster_id="here", node_id=1)
    return LocalStorage((directory,), identity, topics=_Topics(), clock=clock, ids=SystemIds(clock))


def test_acknowledged_records_are_readable_after_a_crash(tmp_path: Path) -> None:
    """The checkpointed high watermark does not limit readers, even before anything is appended."""
    running = _storage(tmp_path / "running")
    running.open()
    log = running.manager.get_or_create("rock", ROCK.topic_id, 0, log_config_of(ROCK.config))
    log.append_as_leader(batch(0, 3), 0)
    log.update_high_watermark(3)
    running.manager.periodic_tasks.checkpoint_high_watermarks()
    log.append_as_leader(batch(0, 2), 0)
    log.update_high_watermark(5)
    shutil.copytree(tmp_path / "running", tmp_path / "crashed")
    running.close()
    again = _storage(tmp_path / "crashed")
    again.open()
    found = again.manager.get(TopicPartition("rock", 0))
    assert found is not None
    assert found.high_watermark == 5
    assert offsets_of(found.read(0, 10_000).data) == [0, 1, 2, 3, 4]
    again.close()
