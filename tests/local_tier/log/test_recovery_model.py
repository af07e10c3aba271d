"""A damaged log is recovered as if only the batches before the damage had been written."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from local_tier.producers.producer_state_entry import AppendOrigin
from tests.local_tier.batches import batch, marker, rows_of
from tests.local_tier.log.test_log_loader import contents
from tests.local_tier.logs import LogHarness, crash

if TYPE_CHECKING:
    from local_tier.log.unified_log import UnifiedLog

IDEMPOTENT, TRANSACTIONAL = 7, (8, 9)
CHECKSUMMED = 17  # bytes of a header before it: offset, length, epoch and magic


class Step(NamedTuple):
    """One batch: data of a producer or of none (-1), or the end of a producer's transaction."""

    producer: int
    ends: bool | None  # whether it commits
    records: int
    size: int
    begins_epoch: bool


STEPS = st.lists(
    st.builds(
        Step,
        producer=st.sampled_from([-1, IDEMPOTENT, *TRANSACTIONAL]),
        ends=st.sampled_from([None, None, None, False, True]),
        records=st.integers(1, 3),
        size=st.sampled_from([10, 50, 150, 250]),
        begins_epoch=st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=16,
)


@dataclass
class Writer:
    """Appends steps as clients would."""

    log: UnifiedLog
    epoch: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    def append(self, step: Step) -> None:
        self.epoch += step.begins_epoch
        producer = step.producer
        if step.ends is not None and producer in self.open:
            self.open.remove(producer)
            data = marker(0, producer=(producer, 0), abort=not step.ends)
            self.log.append_as_leader(data, self.epoch, origin=AppendOrigin.COORDINATOR)
            return
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + step.records
        stamp = (producer, 0, sequence) if producer >= 0 else (-1, -1, -1)
        if producer in TRANSACTIONAL:
            self.open.add(producer)
        data = batch(0, step.records, size=step.size, producer=stamp, transactional=producer in TRANSACTIONAL)
        self.log.append_as_leader(data, self.epoch)


def write(harness: LogHarness, steps: list[Step]) -> UnifiedLog:
    writer = Writer(harness.open())
    for step in steps:
        writer.append(step)
    return writer.log


def knowledge(log: UnifiedLog) -> tuple[object, ...]:
    """Return everything that a log knows, without segments that have no batch."""
    *known, segments = contents(log)
    log.update_high_watermark(log.log_end_offset)
    assert isinstance(segments, list)
    return *known, [each for each in segments if each[1]], log.last_stable_offset


class Place(NamedTuple):
    """A batch of a log on disk: its segment, and where it is in it."""

    segment: int
    path: Path
    start: int
    size: int


def places(log: UnifiedLog) -> list[Place]:
    return [
        Place(number, segment.path, int(row["position"]), int(row["size"]))
        for number, segment in enumerate(log.segments)
        for row in rows_of(segment.path.read_bytes())
    ]


def damage(place: Place, kind: str, share: float) -> None:
    """Truncate the segment within a batch, or change a byte of the batch that its checksum covers."""
    data = bytearray(place.path.read_bytes())
    if kind == "torn":
        place.path.write_bytes(data[: place.start + int(share * place.size)])
    else:
        data[place.start + CHECKSUMMED + int(share * (place.size - CHECKSUMMED))] ^= 0xFF
        place.path.write_bytes(data)


@given(
    STEPS,
    st.sampled_from(["nothing", "torn", "torn", "changed"]),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
    st.booleans(),
)
def test_recovery_keeps_the_batches_before_the_damage(
    steps: list[Step], kind: str, which: float, share: float, point: float, with_snapshots: bool
) -> None:
    """The recovery point is in the damaged segment, or before it. Segments behind the damage are not read."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        harness = LogHarness(Path(one))
        log = write(harness, steps)
        everything = places(log)
        assert len(everything) == len(steps)
        bases = [segment.base_offset for segment in log.segments]
        crash(log)
        kept, last = len(steps), len(bases) - 1
        if kind != "nothing":
            kept = int(which * len(steps))
            last = everything[kept].segment
            damage(everything[kept], kind, share)
        first = int(point * (last + 1))
        if not with_snapshots:
            for path in harness.directory.glob("*.snapshot"):
                path.unlink()

        again = harness.open(recovery_point=bases[first])

        model = write(LogHarness(Path(other)), steps[:kept])
        end = model.log_end_offset
        assert knowledge(again) == knowledge(model)
        assert again.recovery_point == min(bases[first], end)
        unread = len(bases) - first
        assert harness.remaining == [*range(unread, unread - (last - first) - 1, -1), 0]
        for each in (again, model):
            assert each.append_as_leader(batch(0, 1), 20).first_offset == end
            crash(each)
