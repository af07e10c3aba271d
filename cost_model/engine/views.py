"""The snapshot that the policy gets of a cell, bounded as `planner.planner` bounds that of a catalog."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Final
from uuid import UUID

from catalog.model import FileKind, PartitionState
from planner.clustering import is_fragmented
from planner.merging import is_mostly_dead
from planner.snapshot import Mergeable, PartitionView, Snapshot, Spent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from catalog.model import Extent, PartitionId
    from cost_model.engine.scaled_model import CellFile, CellLog, Part
    from planner.settings import PlannerSettings
    from planner.snapshot import FileView

Claims = set[tuple["PartitionId", int]]
_NO_LIMIT_MS: Final = 2**63 - 1
_EXTENTS_OF_ONE: Final = 10_000
_A_JOB: Final = UUID(int=2**127)


def snapshot_of(
    log: CellLog,
    now_ms: int,
    settings: PlannerSettings,
    *,
    claimed: AbstractSet[tuple[PartitionId, int]] = frozenset(),
    spent: Spent | None = None,
    most_files: int | None = None,
) -> Snapshot:
    """What a planner would load now; `claimed` are the extents of open jobs.

    At most `most_files` ingestion files, where that is less than the settings allow.
    """
    ingestion = _oldest(log.ingestion.values(), claimed, settings)[:most_files]
    free: dict[PartitionId, list[Extent]] = {}
    for file in ingestion:
        for (key, base), extent in file.live.items():
            if (key, base) not in claimed:
                free.setdefault(key, []).append(extent)
    dirty = _dirty(log, settings)
    others = [key for key in free if key not in dirty and log.parts[key].rules.compacted]
    deep = _with_room([log.parts[key] for key in (*dirty, *others)], settings)
    views = tuple(
        _view(log.parts[key], _seen(log.parts[key], key in deep, free.get(key, ()), claimed))
        for key in sorted({*free, *dirty})
    )
    fragmented = _fragmented(log, claimed, settings)
    mergeable = _mergeable(log, claimed, settings)
    merging = {key for each in mergeable for key, _ in log.files[each.file.file_id].live}
    return Snapshot(
        now_ms=now_ms,
        partitions=views,
        files=_files(log, ingestion, (*views, *fragmented)),
        fragmented=fragmented,
        mergeable=mergeable,
        mergeable_views={key: _view(log.parts[key], ()) for key in merging},
        spent=spent or Spent(),
    )


def _oldest(
    files: Iterable[CellFile], claimed: AbstractSet[tuple[PartitionId, int]], settings: PlannerSettings
) -> list[CellFile]:
    """The oldest ingestion files that have free extents (`files_to_compact`)."""
    found: list[CellFile] = []
    extents = 0
    for file in files:
        held = len(file.live) - (len(claimed & file.live.keys()) if claimed else 0)
        if not held:
            continue
        extents += held
        if found and (len(found) >= settings.max_plan_files or extents > settings.max_plan_extents):
            break
        found.append(file)
    return found


def _dirty(log: CellLog, settings: PlannerSettings) -> dict[PartitionId, Part]:
    """Compacted partitions that may be due by their sums; topics take turns (`dirty_partitions`)."""
    by_topic: dict[UUID, list[tuple[int, Part]]] = {}
    for part in log.parts.values():
        dirty = part.dirty_bytes() if part.rules.compacted else 0
        if not dirty:
            continue
        limited = settings.force or part.rules.max_compaction_lag_ms < _NO_LIMIT_MS
        live = sum(extent.length for extent in part.extents)
        if limited or dirty > part.rules.min_cleanable_dirty_ratio * live:
            by_topic.setdefault(part.key.topic_id, []).append((dirty, part))
    for each in by_topic.values():
        each.sort(key=lambda one: (-one[0], one[1].key.partition))
    turns = chain.from_iterable(zip_longest(*by_topic.values()))
    ordered = [one[1] for one in turns if one is not None][: settings.max_plan_partitions]
    return {part.key: part for part in ordered}


def _with_room(parts: Sequence[Part], settings: PlannerSettings) -> set[PartitionId]:
    """Those whose extents are loaded, in their order, as long as there is room."""
    room = settings.max_plan_extents
    deep: set[PartitionId] = set()
    for part in parts:
        count = min(len(part.extents), _EXTENTS_OF_ONE)
        if count <= room:
            room -= count
            deep.add(part.key)
    return deep


def _fragmented(
    log: CellLog, claimed: AbstractSet[tuple[PartitionId, int]], settings: PlannerSettings
) -> tuple[PartitionView, ...]:
    """Partitions with many short extents, the newest of each (`fragmented_partitions`)."""
    most = settings.max_seen_extents
    found: list[PartitionView] = []
    for _, part in sorted(log.parts.items()):
        if len(part.extents) <= settings.resting_extents // 2:
            continue
        held = [each for each in part.extents if each.file_kind is FileKind.COMPACTED]
        if is_fragmented(len(held), sum(each.length for each in part.extents), settings):
            found.append(_view(part, _marked(part, held[-most:], claimed)))
    return tuple(found)


def _seen(
    part: Part,
    deep: bool,
    free: Sequence[Extent],
    claimed: AbstractSet[tuple[PartitionId, int]],
) -> tuple[Extent, ...]:
    return _marked(part, part.extents[:_EXTENTS_OF_ONE] if deep else free, claimed)


def _marked(
    part: Part, extents: Sequence[Extent], claimed: AbstractSet[tuple[PartitionId, int]]
) -> tuple[Extent, ...]:
    if not claimed:
        return tuple(extents)
    return tuple(
        replace(extent, claimed_by=_A_JOB) if (part.key, extent.base_offset) in claimed else extent
        for extent in extents
    )


def _view(part: Part, extents: tuple[Extent, ...]) -> PartitionView:
    state = PartitionState(
        topic_id=part.key.topic_id,
        partition=part.key.partition,
        log_start_offset=part.log_start,
        last_stable_offset=part.log_end,
        high_watermark=part.log_end,
        log_end_offset=part.log_end,
        first_dirty_offset=part.first_dirty,
        leader_epoch=0,
    )
    return PartitionView(rules=part.rules, state=state, extents=extents)


def _files(
    log: CellLog, ingestion: Sequence[CellFile], views: Sequence[PartitionView]
) -> Mapping[UUID, FileView]:
    """Compacted files of the partitions, then ingestion files, the older first."""
    compacted = {
        extent.file_id for view in views for extent in view.extents if extent.file_kind is FileKind.COMPACTED
    }
    known = {file_id: _counted(log.files[file_id]) for file_id in sorted(compacted)}
    return known | {file.view.file_id: file.view for file in ingestion}


def _mergeable(
    log: CellLog, claimed: AbstractSet[tuple[PartitionId, int]], settings: PlannerSettings
) -> tuple[Mergeable, ...]:
    """Compacted files that are small, then those that are mostly dead (`files_to_merge`)."""
    small: list[CellFile] = []
    dying: list[Mergeable] = []
    for file in log.files.values():
        if claimed and not claimed.isdisjoint(file.live):
            continue
        is_narrow = len(file.live) <= settings.max_merged_extents
        if is_narrow and log.scale.is_small(file.live_bytes, file.objects):
            small.append(file)
        elif file.born_bytes - file.live_bytes >= settings.min_dead_bytes:
            each = _as_mergeable(file)
            if is_mostly_dead(each, settings):
                dying.append(each)
    small.sort(key=lambda file: file.live_bytes)
    dying.sort(key=lambda each: -each.dead_bytes)
    found: list[Mergeable] = []
    extents = 0
    for each in (*map(_as_mergeable, small[: settings.max_plan_files]), *dying):
        extents += len(each.extents)
        if len(found) == settings.max_plan_files or extents > settings.max_plan_extents:
            break
        found.append(each)
    return tuple(found)


def _counted(file: CellFile) -> FileView:
    return replace(file.view, extents=len(file.live))


def _as_mergeable(file: CellFile) -> Mergeable:
    return Mergeable(
        file=_counted(file),
        extents=tuple(file.live.values()),
        live_bytes=file.live_bytes,
        dead_bytes=file.born_bytes - file.live_bytes,
    )
