"""After a group that stops early, the task processes more and more partitions before the next attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spark_jobs.task.small_sections import runner
from spark_jobs.task.small_sections.runner import SmallSections

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Pass:
    """An input pass that notes which positions it needs no more."""

    def __init__(self) -> None:
        self.closed: list[int] = []

    def close_after(self, position: int) -> None:
        self.closed.append(position)


class _Scripted:
    """Small sections of `count` partitions, whose groups have the `results`; the last one repeats."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, count: int, results: Sequence[tuple[int, bool]]
    ) -> None:
        self.attempts: list[int] = []
        self.passes = _Pass(), _Pass()
        self._count = count
        self._results = list(results)
        self._here = 0
        monkeypatch.setattr(runner, "plan_group", self._plan)
        monkeypatch.setattr(runner, "_GroupRun", lambda *_: self)
        without_use: Any = None
        passes: Any = self.passes
        works: Any = [None] * count
        self._sections = SmallSections(
            without_use, works, passes, without_use, without_use, read_size=1, key_capacity=1
        )

    def _plan(self, _spec: object, _works: object, first: int, **_limits: object) -> object:
        self.attempts.append(first)
        return object() if self._results else None

    def run(self, *_passes: _Pass) -> tuple[int, bool]:
        return self._results.pop(0) if len(self._results) > 1 else self._results[0]

    def run_all(self) -> list[int]:
        """Process all partitions as a task does; return the positions of attempts."""
        position = 0
        while position < self._count:
            position += self._sections.run(position) or 1
        return self.attempts


def test_the_pause_after_groups_without_a_partition_doubles_up_to_64(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = _Scripted(monkeypatch, 300, [(0, True)])

    assert scripted.run_all() == [0, 1, 3, 7, 15, 31, 63, 127, 191, 255]
    assert scripted.passes[0].closed == []


def test_the_partition_that_stopped_a_group_counts_in_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of two partitions stops at the third one."""
    scripted = _Scripted(monkeypatch, 20, [(2, True)])

    assert scripted.run_all() == [0, 3, 7, 13]
    for each in scripted.passes:
        assert each.closed == [0, 1, 3, 4, 7, 8, 13, 14]


def test_a_group_without_a_stop_ends_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [(0, True), (0, True), (2, False), (0, True), (0, True), (5, False)]

    assert _Scripted(monkeypatch, 12, results).run_all() == [0, 1, 3, 5, 6, 8]


@pytest.mark.parametrize(("count", "attempts"), [(1, []), (2, [0, 1])])
def test_a_single_partition_is_in_no_group(
    monkeypatch: pytest.MonkeyPatch, count: int, attempts: list[int]
) -> None:
    """The task opens its inputs in turn. Nothing pauses after a partition that is not small."""
    assert _Scripted(monkeypatch, count, []).run_all() == attempts
