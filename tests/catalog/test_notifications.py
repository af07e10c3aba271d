"""Waiting for commits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.errors import CatalogUnavailableError
from catalog.model import PartitionId
from catalog.notifications import decode_partitions, encode_partitions
from catalog.open import open_catalog
from tests.catalog.scene import run_of
from tests.catalog.wire import WireProxy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bedrock.clock import Clock
    from bedrock.ids import Ids
    from tests.catalog.scene import Scene

_PARTITIONS = st.tuples(st.uuids() | st.sampled_from([UUID(int=1), UUID(int=2)]), st.integers(0, 2**31 - 1))


@given(st.sets(_PARTITIONS, min_size=1, max_size=40))
def test_payloads_name_their_partitions(partitions: set[tuple[UUID, int]]) -> None:
    payload = encode_partitions(sorted(partitions))
    assert len(payload) < 8000
    assert decode_partitions(payload) == frozenset(PartitionId(*each) for each in partitions)


def test_too_many_partitions_mean_anything() -> None:
    assert encode_partitions((UUID(int=number), 0) for number in range(1000)) == ""
    for payload in ("", "no", "ab:1", f"{UUID(int=1).hex}:x"):
        assert decode_partitions(payload) is None


def test_a_commit_of_another_process_is_heard(scene: Scene, catalog_url: str, clock: Clock, ids: Ids) -> None:
    topic = scene.topic(partitions=3)
    with open_catalog(catalog_url, clock, ids) as other:
        watcher = other.watcher()
        assert watcher.wait(0) is None, "before it listened, anything may have happened"
        assert watcher.wait(0) == frozenset()
        scene.commit(topic, run_of(1), partition=2)
        scene.commit(topic, run_of(1), partition=0)
        heard: set[PartitionId] = set()
        while len(heard) < 2:
            heard |= watcher.wait(10) or set()
        assert heard == {PartitionId(topic.topic_id, 0), PartitionId(topic.topic_id, 2)}
        scene.commit(topic, run_of(1), partition=9)  # refused, so there is nothing to hear
        assert watcher.wait(0.05) == frozenset()
        watcher.close()


def test_a_wait_ends_with_a_commit(scene: Scene) -> None:
    topic = scene.topic()
    watcher = scene.catalog.watcher()
    watcher.wait(0)
    committing = threading.Timer(0.1, scene.commit, (topic, run_of(1)))
    committing.start()
    assert watcher.wait(60) == frozenset({PartitionId(topic.topic_id, 0)})
    committing.join()
    watcher.close()


def test_a_lost_connection_is_made_again(
    scene: Scene, catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids
) -> None:
    topic = scene.topic()
    with WireProxy(catalog_url, tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        watcher = catalog.watcher()
        watcher.wait(0)
        wire.break_connections()
        with pytest.raises(CatalogUnavailableError):
            watcher.wait(10)
        scene.commit(topic, run_of(1))
        assert watcher.wait(0) is None, "what was missed is reported as anything"
        scene.commit(topic, run_of(1))
        assert watcher.wait(10) == frozenset({PartitionId(topic.topic_id, 0)})
        watcher.close()


def test_strange_notifications_mean_anything(scene: Scene, catalog_url: str) -> None:
    watcher = scene.catalog.watcher()
    watcher.wait(0)
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        connection.execute("NOTIFY siltstone_commits, 'hello'")
    assert watcher.wait(10) is None
    watcher.close()


def test_nobody_to_listen_to(
    new_catalog_url: Callable[..., str], clock: Clock, ids: Ids, tmp_path: Path
) -> None:
    with WireProxy(new_catalog_url(), tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        watcher = catalog.watcher()
        (tmp_path / ".s.PGSQL.5432").unlink()
        with pytest.raises(CatalogUnavailableError, match="stopped"):
            watcher.wait(0)
        watcher.close()
