"""A log whose end was lost and readopted equals one that lost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.errors import SessionFencedError
from catalog.lifecycle.lost_commits import AcknowledgedCommit
from catalog.model import PartitionId
from catalog.open import open_catalog
from core.clock import ManualClock
from core.ids import SeededIds
from tests.catalog.scene import Scene, run_of
from tests.fixtures.postgres import PATIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from catalog.model import FileCommit, SectionResult, Topic
    from catalog.open import Catalog
    from core.ids import Ids

_PARTITIONS = 2


class Batch(NamedTuple):
    """A batch of a commit: partition, records, and the producer (None: not idempotent)."""

    partition: int
    records: int
    producer: int | None
    is_retry: bool


_COMMITS = st.lists(
    st.lists(
        st.builds(
            Batch,
            st.integers(0, _PARTITIONS - 1),
            st.integers(1, 4),
            st.sampled_from([None, 5, 6]),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=8,
)


class Log:
    """Commits to one topic of one catalog, from the same batches in every log."""

    def __init__(self, catalog: Catalog, ids: Ids, number: int) -> None:
        self.scene = Scene.set_up(catalog, ids)
        self.topic: Topic = self.scene.topic(f"t{number}", partitions=_PARTITIONS)
        self._sequences: dict[tuple[int, int], tuple[int, int]] = {}

    def file(self, batches: list[Batch]) -> FileCommit:
        """Return a file. A retry repeats the producer's last batch; all others continue its sequence."""
        sections: dict[PartitionId, list] = {}  # type: ignore[type-arg]  # of runs
        for partition, records, producer, is_retry in batches:
            stamp = None
            count = records
            if producer is not None:
                key = (partition, producer)
                first, length = self._sequences.get(key, (0, 0))
                if is_retry and length:
                    count = length
                else:
                    first, length = first + length, records
                    self._sequences[key] = (first, records)
                stamp = (producer, 0, first)
            runs = sections.setdefault(PartitionId(self.topic.topic_id, partition), [])
            runs.append(run_of(count, producer=stamp))
        return self.scene.file(sections)

    def state(self) -> object:
        """Return what readers, producers and the planner see of the log, without ids and epochs."""
        extents = [
            [
                (each.base_offset, each.last_offset, each.record_count, each.max_timestamp, each.offset_shift)
                for each in self.scene.extents(self.topic, partition)
            ]
            for partition in range(_PARTITIONS)
        ]
        ids = [PartitionId(self.topic.topic_id, partition) for partition in range(_PARTITIONS)]
        producers = self.scene.catalog.producers.of_partitions(ids)
        known = [
            sorted((each.producer_id, each.producer_epoch, each.last_sequence) for each in producers[key])
            for key in ids
        ]
        return extents, known, [each.high_watermark for each in self.scene.catalog.topics.states(ids)]


@pytest.fixture
def scene(catalog: Catalog, ids: Ids) -> Scene:
    """Return an empty catalog with a session."""
    return Scene.set_up(catalog, ids)


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return iter(range(10_000))


@pytest.fixture
def catalogs(new_catalog_url: Callable[..., str]) -> Iterator[tuple[Catalog, Catalog]]:
    """Return two empty catalogs for all examples; each example uses a topic of its own."""
    clock = ManualClock()
    with (
        open_catalog(new_catalog_url(), clock, SeededIds(1, clock), limits=PATIENT) as first,
        open_catalog(new_catalog_url(), clock, SeededIds(2, clock), limits=PATIENT) as second,
    ):
        yield first, second


def appended(results: tuple[SectionResult, ...]) -> list[int]:
    return [run.base_offset for result in results for run in result.runs]


def test_a_readopted_log_equals_one_that_lost_nothing(
    catalogs: tuple[Catalog, Catalog], numbers: Iterator[int]
) -> None:
    """Offsets, sequence numbers and duplicates are the same; repeated calls change nothing."""

    @given(_COMMITS, st.integers(0, 8), st.integers(0, 2))
    def check(commits: list[list[Batch]], kept: int, repeated: int) -> None:
        number = next(numbers)
        ids = SeededIds(number + 10, ManualClock())
        whole, lossy = (Log(catalog, ids, number) for catalog in catalogs)
        results = [whole.scene.catalog.commits.commit(whole.file(batches)) for batches in commits]
        files = [lossy.file(batches) for batches in commits]
        for file in files[:kept]:
            lossy.scene.catalog.commits.commit(file)
        lossy.scene.catalog.incarnations.declare_restore("a test")
        for at, file in enumerate(files[kept:], kept):
            for _ in range(1 + repeated):
                done = lossy.scene.catalog.commits.readopt(file)
                assert appended(done) == appended(results[at])
        assert lossy.state() == whole.state()
        lossy.scene.catalog.lost_commits.settle([lossy.scene.session_id])
        recorded = {each.file_id for each in lossy.scene.catalog.lost_commits.list()}
        assert recorded >= {file.file_id for file in files[kept:]}

    check()


def test_only_files_of_closed_and_unsettled_sessions_are_readopted(scene: Scene) -> None:
    """The session could still commit the file, or garbage collection could delete it."""
    topic = scene.topic()
    file = scene.file({PartitionId(topic.topic_id, 0): [run_of(3)]})
    with pytest.raises(SessionFencedError, match="active"):
        scene.catalog.commits.readopt(file)
    scene.catalog.sessions.end(scene.session_id)
    with pytest.raises(SessionFencedError, match="ended"):
        scene.catalog.commits.readopt(file)
    scene.session_id = scene.ids.new_uuid()  # of a lost registration
    file = scene.file({PartitionId(topic.topic_id, 0): [run_of(3)]})
    assert appended(scene.catalog.commits.readopt(file)) == [0]
    with pytest.raises(SessionFencedError):
        scene.catalog.sessions.heartbeat(scene.session_id)


def test_a_session_with_waiting_files_is_not_settled(scene: Scene) -> None:
    topic = scene.topic()
    file = scene.file({PartitionId(topic.topic_id, 0): [run_of(3)]})
    scene.catalog.incarnations.declare_restore("a test")
    lost = AcknowledgedCommit(
        file_id=file.file_id,
        session_id=scene.session_id,
        object_name=file.object_name,
        number=1,
        offsets=(),
    )
    for _ in range(2):
        scene.catalog.lost_commits.report([scene.session_id], [lost], 1)
        scene.catalog.lost_commits.settle([scene.session_id])
    assert [each.is_reported for each in scene.catalog.lost_commits.unsettled_sessions()] == [True]
    assert scene.catalog.incarnations.ensure().epoch == 1
    assert scene.catalog.incarnations.backlog == (1, 1)
    scene.catalog.commits.readopt(file)
    scene.catalog.lost_commits.settle([scene.session_id])
    scene.catalog.incarnations.ensure()
    assert scene.catalog.incarnations.backlog == (0, 0)
    (kept,) = scene.catalog.lost_commits.list()
    assert (kept.acknowledged, kept.outcome, [each[2:] for each in kept.new_offsets]) == (
        True,
        "readopted",
        [(0, 3)],
    )
