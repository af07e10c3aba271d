"""The policy's snapshot of a simulated log, with the same bounds as the snapshot of a catalog."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Final

from catalog.model import FileKind, PartitionState
from planner.jobs.clustering import is_fragmented
from planner.jobs.merging import is_mostly_dead
from planner.snapshot import Mergeable, PartitionView, Snapshot, Spent
from planner.snapshot_loader import NO_LIMIT_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from catalog.model import Extent, PartitionId
    from cost_model.engine.simulated_log import SimulatedFile, SimulatedLog, SimulatedPartition
    from planner.settings import PlannerSettings
    from planner.snapshot import FileView

_MAX_PARTITION_EXTENTS: Final = 10_000


def snapshot_of(
    log: SimulatedLog,
    now_ms: int,
    settings: PlannerSettings,
    *,
    spent: Spent | None = None,
    max_files: int | None = None,
) -> Snapshot:
    """Return what the planner would load at `now_ms`.

    `max_files` limits the ingestion files further than the settings do.
    """
    ingestion = _oldest(log.ingestion.values(), settings)[:max_files]
    free: dict[PartitionId, list[Extent]] = {}
    for file in ingestion:
        for (key, _), extent in file.live.items():
            free.setdefault(key, []).append(extent)
    dirty = _dirty_partitions(log, settings)
    others = [key for key in free if key not in dirty and log.partitions[key].rules.compacted]
    loaded = _within_extent_budget([log.partitions[key] for key in (*dirty, *others)], settings)
    views = tuple(
        _view(
            log.partitions[key],
            _visible_extents(log.partitions[key], key in loaded, free.get(key, ())),
        )
        for key in sorted({*free, *dirty})
    )
    fragmented = _fragmented(log, settings)
    mergeable = _mergeable(log, settings)
    merging = {key for each in mergeable for key, _ in log.files[each.file.file_id].live}
    return Snapshot(
        now_ms=now_ms,
        partitions=views,
        files=_files(log, ingestion, (*views, *fragmented)),
        fragmented=fragmented,
        mergeable=mergeable,
        mergeable_views={key: _view(log.partitions[key], ()) for key in merging},
        spent=spent or Spent(),
    )


def _oldest(files: Iterable[SimulatedFile], settings: PlannerSettings) -> list[SimulatedFile]:
    """Return the oldest ingestion files, as the catalog's `files_to_compact` does."""
    found: list[SimulatedFile] = []
    extents = 0
    for file in files:
        extents += len(file.live)
        if found and (len(found) >= settings.max_plan_files or extents > settings.max_plan_extents):
            break
        found.append(file)
    return found


def _dirty_partitions(log: SimulatedLog, settings: PlannerSettings) -> dict[PartitionId, SimulatedPartition]:
    """Return compacted partitions that may be due, alternating between topics, as `dirty_partitions` does."""
    by_topic: dict[UUID, list[tuple[int, SimulatedPartition]]] = {}
    for part in log.partitions.values():
        dirty = part.dirty_bytes() if part.rules.compacted else 0
        if not dirty:
            continue
        limited = settings.force or part.rules.max_compaction_lag_ms < NO_LIMIT_MS
        live = sum(extent.length for extent in part.extents)
        if limited or dirty > part.rules.min_cleanable_dirty_ratio * live:
            by_topic.setdefault(part.key.topic_id, []).append((dirty, part))
    for each in by_topic.values():
        each.sort(key=lambda one: (-one[0], one[1].key.partition))
    interleaved = chain.from_iterable(zip_longest(*by_topic.values()))
    ordered = [one[1] for one in interleaved if one is not None][: settings.max_plan_partitions]
    return {part.key: part for part in ordered}


def _within_extent_budget(parts: Sequence[SimulatedPartition], settings: PlannerSettings) -> set[PartitionId]:
    """Return the partitions whose extents are loaded, in their order, until `max_plan_extents` is used up."""
    remaining = settings.max_plan_extents
    loaded: set[PartitionId] = set()
    for part in parts:
        count = min(len(part.extents), _MAX_PARTITION_EXTENTS)
        if count <= remaining:
            remaining -= count
            loaded.add(part.key)
    return loaded


def _fragmented(log: SimulatedLog, settings: PlannerSettings) -> tuple[PartitionView, ...]:
    """Return partitions with many short extents.

    Of each, only the newest extents are included, as in `fragmented_partitions`.
    """
    max_extents = settings.max_seen_extents
    found: list[PartitionView] = []
    for _, part in sorted(log.partitions.items()):
        if len(part.extents) <= settings.resting_extents // 2:
            continue
        compacted = [each for each in part.extents if each.file_kind is FileKind.COMPACTED]
        if is_fragmented(len(compacted), sum(each.length for each in part.extents), settings):
            found.append(_view(part, tuple(compacted[-max_extents:])))
    return tuple(found)


def _visible_extents(part: SimulatedPartition, loaded: bool, free: Sequence[Extent]) -> tuple[Extent, ...]:
    return tuple(part.extents[:_MAX_PARTITION_EXTENTS] if loaded else free)


def _view(part: SimulatedPartition, extents: tuple[Extent, ...]) -> PartitionView:
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
    log: SimulatedLog, ingestion: Sequence[SimulatedFile], views: Sequence[PartitionView]
) -> Mapping[UUID, FileView]:
    """Return the compacted files of the partitions, then the ingestion files from old to new."""
    compacted = {
        extent.file_id for view in views for extent in view.extents if extent.file_kind is FileKind.COMPACTED
    }
    known = {file_id: _file_view(log.files[file_id]) for file_id in sorted(compacted)}
    return known | {file.view.file_id: file.view for file in ingestion}


def _mergeable(log: SimulatedLog, settings: PlannerSettings) -> tuple[Mergeable, ...]:
    """Return small compacted files, then mostly dead ones, as `files_to_merge` does."""
    small: list[SimulatedFile] = []
    mostly_dead: list[Mergeable] = []
    for file in log.files.values():
        is_narrow = len(file.live) <= settings.max_merged_extents
        if is_narrow and log.scale.is_small(file.live_bytes, file.objects):
            small.append(file)
        elif file.initial_bytes - file.live_bytes >= settings.min_dead_bytes:
            each = _as_mergeable(file)
            if is_mostly_dead(each, settings):
                mostly_dead.append(each)
    small.sort(key=lambda file: file.live_bytes)
    mostly_dead.sort(key=lambda each: -each.dead_bytes)
    found: list[Mergeable] = []
    extents = 0
    for each in (*map(_as_mergeable, small[: settings.max_plan_files]), *mostly_dead):
        extents += len(each.extents)
        if len(found) == settings.max_plan_files or extents > settings.max_plan_extents:
            break
        found.append(each)
    return tuple(found)


def _file_view(file: SimulatedFile) -> FileView:
    return replace(file.view, extents=len(file.live))


def _as_mergeable(file: SimulatedFile) -> Mergeable:
    return Mergeable(
        file=_file_view(file),
        extents=tuple(file.live.values()),
        live_bytes=file.live_bytes,
        dead_bytes=file.initial_bytes - file.live_bytes,
    )
