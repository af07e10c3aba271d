"""Agent process that only commits.

    python -m tests.catalog.committer URL TOPIC SEED COUNT

It prints one JSON array of [partition, first offset, count] with all acknowledged appends. It commits some
files twice, like an agent that has lost the response.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from catalog.errors import CatalogUnavailableError
from catalog.model import PartitionId
from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SeededIds
from tests.catalog.scene import Scene, run_of

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def retry_while_unavailable(call: Callable[[], T]) -> T:
    """Retry while the catalog is unavailable: connections may break faster than a busy server responds."""
    while True:
        with contextlib.suppress(CatalogUnavailableError):
            return call()


def append_at_random(url: str, topic_id: UUID, seed: int, count: int) -> list[tuple[int, int, int]]:
    """Commit `count` files of one to three sections; return the acknowledged appends."""
    clock = SystemClock()
    choices = random.Random(seed)
    appended = []
    with retry_while_unavailable(partial(open_catalog, url, clock, SeededIds(seed, clock))) as catalog:
        scene = retry_while_unavailable(partial(Scene.set_up, catalog, SeededIds(seed, clock)))
        sequences = [0] * 3
        for _ in range(count):
            sections = {}
            for partition in choices.sample(range(3), choices.randint(1, 3)):
                size = choices.randint(1, 5)
                producer = (seed, 0, sequences[partition])
                sections[PartitionId(topic_id, partition)] = [run_of(size, producer=producer), run_of(size)]
                sequences[partition] += size
            commit = scene.file(sections)
            results = retry_while_unavailable(partial(catalog.commits.commit, commit))
            if choices.random() < 0.3:
                assert retry_while_unavailable(partial(catalog.commits.commit, commit)) == results
            for section, result in zip(commit.sections, results, strict=True):
                for run, outcome in zip(section.runs, result.runs, strict=True):
                    assert outcome.refusal is None, outcome
                    assert not outcome.duplicate, outcome
                    appended.append((result.partition, outcome.base_offset, run.offset_count))
    return appended


if __name__ == "__main__":
    _, url, topic, seed, count = sys.argv
    sys.stdout.write(json.dumps(append_at_random(url, UUID(topic), int(seed), int(count))))
