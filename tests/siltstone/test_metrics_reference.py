from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from siltstone.compaction.watcher import WatcherStatus
from siltstone.compaction.watcher_metrics import WatcherCollector
from siltstone.metrics_reference import PAGE, update

if TYPE_CHECKING:
    from pathlib import Path


def test_the_reference_page_is_up_to_date(tmp_path: Path) -> None:
    """If this fails, run: python -m siltstone.metrics_reference."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == update(page, tmp_path)


def test_every_field_of_the_watcher_is_a_metric() -> None:
    served = {
        metric.name.removeprefix("siltstone_compaction_")
        for metric in WatcherCollector(WatcherStatus()).collect()
    }
    assert {each.name for each in fields(WatcherStatus)} - {"run"} <= served
