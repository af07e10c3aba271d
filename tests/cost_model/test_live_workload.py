"""The workload that is derived from a catalog's recent commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.errors import NotFoundError
from cost_model.workload.from_catalog import WINDOW_MS, recent_workload
from tests.catalog.scene import Scene, run_of

if TYPE_CHECKING:
    from catalog.open import Catalog
    from core.clock import ManualClock
    from core.ids import Ids

_RECORD_TIME = 1_357_000_000_000  # 2013
_HOUR_MS = 3_600_000


@pytest.fixture
def scene(catalog: Catalog, ids: Ids) -> Scene:
    """An empty catalog with a session."""
    return Scene.set_up(catalog, ids)


def _advance(clock: ManualClock, milliseconds: int) -> None:
    clock.advance(milliseconds / 1000)


def _per_second(scene: Scene) -> float:
    """Return the records per second of the only topic."""
    (topic,) = recent_workload(scene.catalog).topics
    return topic.mb_per_second * 1_000_000 / topic.record_bytes


def test_arrivals_count_by_their_commits(scene: Scene, clock: ManualClock) -> None:
    """The timestamps of the records may be of any time."""
    topic = scene.topic(cleanup_policy="compact")
    for time in (_RECORD_TIME, 4_000_000_000_000, -1):
        for _ in range(3):
            scene.commit(topic, run_of(500, at=time))
            _advance(clock, 10_000)
    assert _per_second(scene) == pytest.approx(50)
    assert "last 0.0 hours" in recent_workload(scene.catalog).description


def test_only_the_last_day_counts(scene: Scene, clock: ManualClock) -> None:
    topic = scene.topic(cleanup_policy="compact")
    now_ms = clock.now_ms()
    scene.commit(topic, run_of(100_000, at=now_ms + WINDOW_MS))
    _advance(clock, WINDOW_MS)
    scene.commit(topic, run_of(5_000, at=_RECORD_TIME))
    _advance(clock, 100_000)
    assert _per_second(scene) == pytest.approx(50)
    _advance(clock, WINDOW_MS)
    with pytest.raises(NotFoundError, match="received records in the last day"):
        recent_workload(scene.catalog)


def test_compacted_records_keep_the_time_of_their_arrival(scene: Scene, clock: ManualClock) -> None:
    """A compacted extent has the records of commits from its own time to that of the next extent."""
    topic = scene.topic(cleanup_policy="compact")
    for _ in range(12):
        scene.commit(topic, run_of(14_400, at=_RECORD_TIME))
        _advance(clock, 4 * _HOUR_MS)
    before = _per_second(scene)
    assert before == pytest.approx(1, rel=0.05)
    oldest = scene.extents(topic)[:11]
    scene.catalog.jobs.complete(scene.result(scene.claimed(oldest), keep=14_400))
    assert _per_second(scene) == pytest.approx(before, rel=0.05)


def test_a_log_that_is_compacted_to_its_end_is_found(scene: Scene, clock: ManualClock) -> None:
    topic = scene.topic(cleanup_policy="compact")
    for _ in range(3):
        scene.commit(topic, run_of(1_000, at=_RECORD_TIME))
        _advance(clock, 10_000)
    scene.catalog.jobs.complete(scene.result(scene.claimed(scene.extents(topic))))
    assert _per_second(scene) == pytest.approx(100)
