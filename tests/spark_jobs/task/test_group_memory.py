"""Kernels of groups stop before the first partition that their memory is too small for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from catalog.model import PartitionId
from object_format.buffers import readable
from object_format.codecs.codec import Codec
from object_format.holes import holes_between
from object_format.kernels.batches.layout import BATCH_OVERHEAD, BATCH_ROW
from object_format.kernels.bitmaps.complement import first_container
from object_format.kernels.dedupe.filter import MAX_GROWTH
from object_format.offset_set import OffsetSet
from object_format.segment_file.layout import (
    BLOCK_HEADER,
    INDEX_ENTRY,
    INDEX_HEADER,
    SECTION_FOOTER,
    SECTION_HEADER,
    SECTION_START_LENGTH,
)
from spark_jobs.task.small_sections import runner
from spark_jobs.task.small_sections.columns import (
    OUT_DATA_LENGTH,
    OUT_END,
    OUT_INDEX_LENGTH,
    OUT_START,
    PIECE_END,
    PIECE_ROW,
    PIECE_ROWS_END,
    PIECE_START,
)
from spark_jobs.task.small_sections.plan import plan_group
from spark_jobs.task.small_sections.read import read_partitions
from spark_jobs.task.small_sections.write import BLOCK_FIELDS, Output, write_holes, write_partitions
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from catalog.model import JobSpec
    from spark_jobs.task.arrangement import PartitionWork
    from spark_jobs.task.small_sections.columns import Group
    from spark_jobs.task.small_sections.plan import GroupLimits, GroupPlan

UNUSED = 0xEE


def copied(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments of a kernel that it may change, with the types for which it is compiled."""
    copies: list[Any] = []
    for value in arguments:
        if isinstance(value, np.ndarray):
            array = value.copy()
            array.flags.writeable = value.flags.writeable
            copies.append(array)
        else:
            copies.append(copied(value) if isinstance(value, tuple) else value)
    return type(arguments)(*copies) if hasattr(arguments, "_fields") else tuple(copies)


def with_less(
    arguments: tuple[Any, ...], name: str, size: int
) -> tuple[tuple[Any, ...], npt.NDArray[np.uint8]]:
    """Return arguments whose array `name` has only so many elements, and the bytes behind them."""
    index = next(i for i, each in enumerate(arguments) if name in getattr(each, "_fields", ()))
    before = getattr(arguments[index], name)
    memory = np.empty((len(before) + 64, *before.shape[1:]), before.dtype)
    memory.view(np.uint8)[:] = UNUSED
    fresh = list(copied(arguments))
    fresh[index] = fresh[index]._replace(**{name: memory[:size]})
    return tuple(fresh), memory[size:].reshape(-1).view(np.uint8)


def first_calls(harness: CompactionHarness, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """Run a job, and return the arguments of the first call of each kernel that reads or writes."""
    found: dict[str, tuple[Any, ...]] = {}
    monkeypatch.setattr(runner, "_OPENED_BYTES", 1 << 15)  # they are copied for each call
    monkeypatch.setattr(runner, "_MAX_CONTAINERS", 2)

    def record(name: str, kernel: Callable[..., int], *arguments: object) -> int:
        found.setdefault(name, copied(arguments))
        return kernel(*arguments)

    for name in ("read_partitions", "write_partitions"):
        kernel = getattr(runner, name)

        monkeypatch.setattr(runner, name, partial(record, name, kernel))
    harness.run(harness.log.job())
    return found


@pytest.fixture
def harness(tmp_path: Path) -> CompactionHarness:
    return CompactionHarness(tmp_path)


PARTITIONS = 4


def ingest(harness: CompactionHarness, *, codec: Codec, policy: str) -> None:
    """Write two files; the second partition is the largest, and the third has the smallest batches."""
    topic = harness.topic(policy)
    sizes = [3, 6, 2, 5]
    for number in range(2):
        harness.log.ingest(
            {
                PartitionId(topic, index): [
                    batch(*((b"%d" % key, bytes(30 * index)) for key in range(at, at + 2)), codec=codec)
                    for at in range(sizes[index] + number)
                ]
                for index in range(PARTITIONS)
            },
            block_target=300,
        )


def stop(needs: Sequence[int], size: int) -> int:
    """Return the index of the first partition that needs more than this, or the number of partitions."""
    return next((index for index, need in enumerate(needs) if need > size), len(needs))


def sizes_around(needs: Sequence[int]) -> Iterator[int]:
    """Yield sizes around what each partition needs."""
    yield from sorted({max(need + step, 0) for need in {0, *needs} for step in (-1, 0, 1)})


@pytest.mark.parametrize("name", ["pieces", "rows"])
def test_a_group_is_read_until_its_memory_is_full(
    harness: CompactionHarness, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    ingest(harness, codec=Codec.NONE, policy="compact")
    call = first_calls(harness, monkeypatch)["read_partitions"]
    whole = copied(call)
    assert read_partitions(*whole) == PARTITIONS
    group: Group = whole[0]
    ends = group.piece_ends.tolist()
    needs = ends if name == "pieces" else [int(group.pieces[end - 1, PIECE_ROWS_END]) for end in ends]

    for size in sizes_around(needs):
        arguments, behind = with_less(call, name, size)
        count = read_partitions(*arguments)
        assert count == stop(needs, size)
        assert (behind == UNUSED).all()
        assert arguments[0].piece_ends[:count].tolist() == ends[:count]


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_batches_are_opened_until_the_memory_is_full(
    harness: CompactionHarness, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    """A kernel may stop one batch early, because it expects batches of similar sizes."""
    ingest(harness, codec=codec, policy="compact")
    call = first_calls(harness, monkeypatch)["read_partitions"]
    whole = copied(call)
    assert read_partitions(*whole) == PARTITIONS
    group: Group = whole[0]
    row_ends = [int(group.pieces[end - 1, PIECE_ROWS_END]) for end in group.piece_ends]
    opened = [int(group.rows[end - 1]["records_end"]) for end in row_ends]
    largest = int((group.rows["records_end"] - group.rows["records_start"])[: row_ends[-1]].max())

    for size in sizes_around([*opened, *(each + largest for each in opened)]):
        arguments, behind = with_less(call, "opened", size)
        count = read_partitions(*arguments)
        assert stop(opened, size - largest - 1) <= count <= stop(opened, size)
        assert (behind == UNUSED).all()


@pytest.mark.parametrize(
    ("policy", "codec"), [("compact", Codec.NONE), ("compact", Codec.LZ4), ("delete", Codec.NONE)]
)
def test_a_group_is_written_until_its_memory_is_full(
    harness: CompactionHarness, monkeypatch: pytest.MonkeyPatch, policy: str, codec: Codec
) -> None:
    """A kernel writes a section if its end, and its size with an index, fit into each array."""
    ingest(harness, codec=codec, policy=policy)
    group, count, survivors, filters, output, max_data = first_calls(harness, monkeypatch)["write_partitions"]
    call = (group, count, survivors, filters, output._replace(block_target=200), max_data)
    whole = copied(call)
    assert write_partitions(*whole) == PARTITIONS
    sections = whole[4].sections[:PARTITIONS]
    ends = (sections[:, OUT_END] - output.position).tolist()
    needs = needs_of(group, whole[4], filters=filters)
    assert max(needs["index"]) > 2

    for name, needed in needs.items():
        sizes = range(ends[0] + 700) if name == "out" else ()
        for size in {*sizes, *sizes_around(needed)}:
            arguments, behind = with_less(call, name, size)
            written = write_partitions(*arguments)
            assert (name, size, written) == (name, size, stop(needed, size))
            assert (behind == UNUSED).all()
            require_prefix(arguments[4], written, whole[4])

    for name in ("work", "compressed", "holes", "containers"):
        memory = getattr(output, name)
        most = 0
        for size in (*range(0, min(len(memory), 1000), 7), len(memory)):
            arguments, behind = with_less(call, name, size)
            written = write_partitions(*arguments)
            assert written >= most
            most = written
            assert (behind == UNUSED).all()
            require_prefix(arguments[4], written, whole[4])
        assert most == PARTITIONS

    lengths = np.cumsum(sections[:, OUT_DATA_LENGTH]).tolist()
    for index, length in enumerate(lengths):
        for limit, expected in ((length, index + 1), (length + 1, min(index + 2, PARTITIONS))):
            assert write_partitions(*copied((*call[:-1], limit))) == expected


def require_prefix(output: Output, written: int, whole: Output) -> None:
    """Compare the first sections with those of an output that has all of them."""
    sections = whole.sections[:written]
    assert (output.sections[:written] == sections).all()
    end = sections[-1, OUT_END] - whole.position if written else 0
    assert (output.out[:end] == whole.out[:end]).all()


def needs_of(group: Group, output: Output, *, filters: bool) -> dict[str, list[int]]:
    """Return the elements of arrays that each partition needs."""
    sections = output.sections[:PARTITIONS].tolist()
    blocks = [
        (row[OUT_INDEX_LENGTH] - BLOCK_HEADER.size - INDEX_HEADER.size) // INDEX_ENTRY.size
        for row in sections
    ]
    fixed = 4 * BLOCK_HEADER.size + SECTION_HEADER.size + INDEX_HEADER.size + SECTION_FOOTER.size
    header = BLOCK_HEADER.size + SECTION_HEADER.size
    ends = [
        max(
            row[OUT_START]
            + header
            + row[OUT_DATA_LENGTH]
            + fixed
            + INDEX_ENTRY.size * each
            - output.position,
            row[OUT_END] - output.position,
        )
        for row, each in zip(sections, blocks, strict=True)
    ]
    pieces = np.split(group.pieces[: group.piece_ends[-1]], group.piece_ends[:-1])
    rows = [int((each[:, PIECE_ROWS_END] - each[:, PIECE_ROW]).max()) for each in pieces]
    if filters:
        return {"out": ends, "index": blocks, "rewritten": rows}
    bytes_ = [int((each[:, PIECE_END] - each[:, PIECE_START]).max()) for each in pieces]
    records = [
        int(group.rows[each[0, PIECE_ROW] : each[-1, PIECE_ROWS_END]]["record_count"].sum())
        for each in pieces
    ]
    return {"out": ends, "index": blocks, "work": bytes_, "kept": records}


def arrays_of(arguments: Sequence[object]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays in the named tuples of a kernel's arguments, and the others by their index."""
    found: dict[str, npt.NDArray[Any]] = {}
    for index, value in enumerate(arguments):
        if isinstance(value, np.ndarray):
            found[str(index)] = value
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            found |= {
                name: each
                for name, each in zip(value._fields, value, strict=True)
                if isinstance(each, np.ndarray)
            }
    return found


def group_arrays(
    harness: CompactionHarness, monkeypatch: pytest.MonkeyPatch
) -> tuple[GroupPlan, dict[str, dict[str, npt.NDArray[Any]]]]:
    """Run a job of one group; return its plan, and the arrays that each kernel got."""
    plans: list[GroupPlan] = []
    found: dict[str, dict[str, npt.NDArray[Any]]] = {}

    def make_plan(
        spec: JobSpec,
        works: Sequence[PartitionWork],
        first: int,
        *,
        max_file_bytes: int,
        key_capacity: int,
        limits: GroupLimits,
    ) -> GroupPlan | None:
        plan = plan_group(
            spec, works, first, max_file_bytes=max_file_bytes, key_capacity=key_capacity, limits=limits
        )
        assert plan is not None
        plans.append(plan)
        return plan

    def record(name: str, kernel: Callable[..., int], *arguments: object) -> int:
        found[name] = arrays_of(arguments)
        return kernel(*arguments)

    monkeypatch.setattr(runner, "plan_group", make_plan)
    for name in ("read_partitions", "find_in_partitions", "write_partitions"):
        monkeypatch.setattr(runner, name, partial(record, name, getattr(runner, name)))
    spec = harness.log.job()
    harness.log.publish(spec, harness.run(spec))
    harness.log.check()
    (plan,) = plans
    return plan, found


def group_shapes(plan: GroupPlan) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays that the kernels of a group fill.

    A batch takes 61 bytes at least, and a piece has a batch. 16 MiB are for opened batches.
    """
    batches = plan.total_bytes // BATCH_OVERHEAD
    opened = 16 << 20 if plan.deduplicate else 0
    piece = min(plan.total_bytes, 512 << 10) + MAX_GROWTH * plan.max_records + 1024
    work = max(opened // 4, piece)
    return {
        "data": (plan.total_bytes,),
        "pieces": (batches, 7),
        "rows": (batches,),
        "piece_ends": (len(plan.works),),
        "cut": (batches, 5),
        "found": (len(plan.bounds),),
        "dropped": (len(plan.bounds),),
        "opened": (opened,),
        "records": (opened,),
        "indexes": (batches,),
        "out": (2 * plan.total_bytes + MAX_GROWTH * plan.records + 1024 * len(plan.works),),
        "sections": (len(plan.works), 12),
        "work": (work,),
        "compressed": (work if plan.deduplicate else 0,),
        "rewritten": (batches, 4),
        "index": (64, 3),
        "containers": (65, 4),
        "holes": (65 * 8192,),
        "kept": (plan.max_records,),
    }


@pytest.mark.parametrize("policy", ["compact", "delete"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_group_has_memory_for_its_batches_and_records(
    harness: CompactionHarness, monkeypatch: pytest.MonkeyPatch, policy: str, codec: Codec
) -> None:
    """Each array has the size that the kernels' documentation requires, and no more."""
    ingest(harness, codec=codec, policy=policy)
    plan, found = group_arrays(harness, monkeypatch)

    shapes = group_shapes(plan)
    for arrays in (found["read_partitions"], found["write_partitions"]):
        named = {name: array.shape for name, array in arrays.items() if name in shapes and name != "sections"}
        assert named == {name: shapes[name] for name in named}
    written = found["write_partitions"]
    assert written["sections"].shape == shapes["sections"]
    assert shapes.keys() <= written.keys()
    if policy == "compact":
        survivors = found["find_in_partitions"]
        table, words, *columns = (array for name, array in survivors.items() if name.isdigit())
        assert (table.size, words.size) == (3 * (3 * plan.max_records + 64), 3 * plan.max_records)
        assert [each.size for each in columns[:3]] == [plan.max_records] * 3
        assert columns[3].shape == (len(plan.works), 4)
        assert survivors["offsets"].size == survivors["tombstones"].size == plan.records
        assert survivors["offset_ends"].size == survivors["tombstone_ends"].size == len(plan.works)


def test_the_largest_group_takes_at_most_70_mib(
    harness: CompactionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has as many partitions as sections with a batch of one record fit."""
    ingest(harness, codec=Codec.LZ4, policy="compact")
    plan, _ = group_arrays(harness, monkeypatch)
    limits = runner.DEFAULT_LIMITS
    section = SECTION_START_LENGTH + BLOCK_HEADER.size + BATCH_OVERHEAD + 7
    shapes = group_shapes(
        replace(
            plan,
            total_bytes=limits.bytes,
            records=limits.records,
            max_records=limits.partition_records,
            works=plan.works[:1] * (limits.bytes // section),
        )
    )
    widths = {"rows": BATCH_ROW.itemsize} | dict.fromkeys(
        ("data", "opened", "out", "work", "compressed", "holes"), 1
    )
    del shapes["records"]  # a view of `opened`
    filled = sum(int(np.prod(shape)) * widths.get(name, 8) for name, shape in shapes.items())
    survivors = 2 * 8 * limits.records
    table = (3 * limits.partition_records + 64) * 12 + limits.partition_records * (12 + 8 + 2)
    assert filled + survivors + table <= 70 << 20


def memory_for_holes(out_bytes: int) -> tuple[Output, npt.NDArray[np.uint8]]:
    """Return an `Output` for `write_holes`, and the bytes behind its `out`."""
    memory = np.full(out_bytes + 64, UNUSED, np.uint8)
    none, no_bytes = np.empty((0, 0), np.int64), np.empty(0, np.uint8)
    return Output(
        out=memory[:out_bytes],
        seed=0,
        position=0,
        block_target=1,
        scratch_bytes=1,
        sections=none,
        work=no_bytes,
        compressed=no_bytes,
        rewritten=none,
        totals=none[0:0].reshape(-1),
        block=np.zeros(BLOCK_FIELDS, np.int64),
        index=none,
        containers=np.empty((runner._MAX_CONTAINERS, 4), np.int64),
        holes=np.empty(runner._MAX_CONTAINERS * runner._CONTAINER_BYTES, np.uint8),
        kept=none[0:0].reshape(-1),
    ), memory[out_bytes:]


@st.composite
def kept_offsets(draw: st.DrawFn) -> tuple[list[int], int]:
    """Return survivors and the span of their section: containers of all kinds, and of some numbers."""
    full = draw(st.sampled_from([0, 0, 1, 2, 3, 4, 7, 8, 9, 16, 17, 63]))
    last = draw(st.sampled_from([1, 2, 30, 5000, 1 << 16]))
    kept: set[int] = set()
    for container in draw(st.lists(st.integers(0, full), max_size=4)):
        size = last if container == full else 1 << 16
        start = container << 16
        match draw(st.integers(0, 3)):
            case 0:  # a bitmap, or an array if it is short
                kept |= set(range(start, start + min(size, 4200), 2))
            case 1:  # no hole in the first part, or none at all
                kept |= set(range(start, start + min(size, draw(st.sampled_from([30, 5000])))))
            case _:  # runs
                kept |= {start + each % size for each in draw(st.lists(st.integers(0, 1 << 16), max_size=5))}
    return sorted(kept), (full << 16) + last


@given(kept_offsets(), st.integers(0, 1 << 40), st.integers(0, 9))
def test_holes_have_the_same_bytes_in_a_group(drawn: tuple[list[int], int], base: int, at: int) -> None:
    """The kernel needs memory for the largest head that a bitmap of so many containers can have."""
    kept, span = drawn
    offsets = np.array(kept, np.int64) + base
    survivors = OffsetSet.of(BitMap64(offsets.astype(np.uint64)))
    expected = holes_between(survivors, base, base + span - 1)
    data = b"".join(expected.parts)

    output, behind = memory_for_holes(at + len(data) + 100)
    end = write_holes(output, offsets.copy(), base, base + span, at)

    assert bytes(output.out[at:end]) == data
    assert (output.out[:at] == UNUSED).all()
    assert (output.out[end:] == UNUSED).all()
    count, _flags, _keys, contents = first_container(readable(data)) if len(data) > 8 else (0, 0, 0, 8)
    bound = at + 12 + 8 + 9 * count + len(data) - contents
    for size in (0, at + len(data) - 1, bound - 1, bound):
        output, behind = memory_for_holes(size)
        assert write_holes(output, offsets.copy(), base, base + span, at) == (end if size == bound else -1)
        assert (behind == UNUSED).all()
