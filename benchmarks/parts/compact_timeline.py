"""Runs `siltstone compact` and notes when its steps begin and end; `benchmarks.compact_command` starts it.

    python -m benchmarks.parts.compact_timeline FILE [SILTSTONE'S ARGUMENTS …]

The steps are functions of the product. They are wrapped once the command has been loaded. Times are those of
`time.monotonic`, which all processes of a machine share. A step may occur several times, and steps may
overlap. This module imports only the standard library, so that loading the command takes as long as without
it.

FILE gets one JSON object: `main` is when the interpreter had started, `spans` is a list of
[step, begin, end], and `tasks` is a list of [end, seconds], the time that the task of each published job
took by its own count.
"""

from __future__ import annotations

import atexit
import importlib
import json
import sys
from functools import wraps
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS: Final = {
    "catalog": ("siltstone.cli.compaction.compact:check_store", "siltstone.context:open_catalog"),
    "plan": ("siltstone.compaction.compactor:plan_jobs", "siltstone.compaction.watcher:plan_jobs"),
    "session": ("spark_jobs.session_manager:SparkSessionManager.start",),
    "preflight": (
        "siltstone.compaction.compactor:check_session",
        "siltstone.compaction.watcher:check_session",
    ),
    "claim": ("siltstone.compaction.compactor:claim_jobs", "siltstone.compaction.watcher:claim_jobs"),
    "jobs": ("spark_jobs.session_manager:SparkSessionManager.run",),
    "publish": ("catalog.jobs.repository:Jobs.complete",),
    "stop": ("spark_jobs.session_manager:SparkSessionManager.__exit__",),
    "garbage": ("siltstone.cli.compaction.compact:collect",),
    "report": (
        "siltstone.cli.compaction.compact:unfinished_jobs",
        "siltstone.cli.compaction.compact:emit_json",
    ),
    "poll": ("siltstone.compaction.watcher:Watcher._poll",),
}
"""Functions and methods of each step. `publish` is part of `jobs`, and `poll` is one poll of a watcher."""

PHASES: Final = ("find_survivors_ms", "write_ms", "complete_ms")
"""Counts of a task that add up to its reading, computing and writing."""

_spans: list[tuple[str, float, float]] = []
_tasks: list[tuple[float, float]] = []


def main(file: str, arguments: list[str]) -> None:
    """Run the command; never return."""
    begin = monotonic()
    atexit.register(
        lambda: Path(file).write_text(json.dumps({"main": begin, "spans": _spans, "tasks": _tasks}))
    )
    atexit.register(lambda: _spans.append(("exit", monotonic(), monotonic())))
    sys.argv[1:] = arguments
    command = importlib.import_module("siltstone.cli.main")
    load = command.LazyGroup.get_command

    @wraps(load)
    def loaded(self: object, context: object, name: str) -> object:
        found = load(self, context, name)
        if name == "compact":
            _spans.append(("imports", begin, monotonic()))
            for step, places in STEPS.items():
                for place in places:
                    _wrap(step, place)
        return found

    command.LazyGroup.get_command = loaded
    command.main()


def _wrap(step: str, place: str) -> None:
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner = importlib.import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    function: Callable[..., Any] = getattr(owner, name)

    @wraps(function)
    def timed(*arguments: Any, **named: Any) -> object:  # noqa: ANN401 -- the arguments of any function
        begin = monotonic()
        try:
            return function(*arguments, **named)
        finally:
            _spans.append((step, begin, monotonic()))
            if step == "publish":
                counts = arguments[1].counts  # of the result
                _tasks.append((begin, sum(counts.get(phase, 0) for phase in PHASES) / 1000))

    setattr(owner, name, timed)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
