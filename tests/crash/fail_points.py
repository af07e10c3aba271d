"""Fail points: named points at which a child process kills itself.

A child runs the real agent or worker with an instrumented store and catalog, which have a point before and
after every call. The product itself has no fail points. A `Crash` names a point and one of its occurrences.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from catalog.open import Catalog
    from object_store.interface import ObjectStore

T = TypeVar("T")

STORE_CALLS: Final = (
    "put",
    "read_range",
    "open_stream",
    "start_upload",
    "list",
    "delete",
    "sweep_unfinished",
)
UPLOAD_CALLS: Final = ("write", "complete")
CATALOG_CALLS: Final = {
    "commits": ("commit", "commit_together"),
    "sessions": ("register", "heartbeat", "fence_silent", "end"),
    "jobs": ("submit", "claim", "heartbeat", "complete", "release", "release_expired"),
    "garbage": ("dead_files", "known_files", "delete_rows", "remove_deleted"),
}
_POINTS: Final = {"commit_together": "commit"}  # it depends on the load which of them an agent calls
AGENT_POINTS: Final = tuple(
    f"{when} {call}"
    for call in ("store.put", "commits.commit", "sessions.register", "sessions.heartbeat")
    for when in ("before", "after")
)
WORKER_POINTS: Final = tuple(
    f"{when} {call}"
    for call in (
        *(f"jobs.{name}" for name in ("submit", "claim", "complete")),
        *(f"store.{name}" for name in ("open_stream", "start_upload", "list", "delete", "sweep_unfinished")),
        *(f"upload.{name}" for name in UPLOAD_CALLS),
        *(f"garbage.{name}" for name in ("dead_files", "known_files", "delete_rows", "remove_deleted")),
        "sessions.fence_silent",
    )
    for when in ("before", "after")
)


@dataclass(frozen=True, slots=True)
class Crash:
    """Kill the process at the given occurrence (1 is the first) of a point."""

    point: str
    occurrence: int = 1


class FailPoints:
    """Counts occurrences of the point, and kills its own process with SIGKILL at the right one."""

    def __init__(self, crash: Crash | None) -> None:
        self._crash = crash
        self._occurrences = 0
        self._lock = threading.Lock()

    def reach(self, point: str) -> None:
        """Note an occurrence of a point; this call may not return."""
        if self._crash is None or self._crash.point != point:
            return
        with self._lock:
            self._occurrences += 1
            if self._occurrences == self._crash.occurrence:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, name: str, call: Callable[..., T]) -> Callable[..., T]:
        """Return `call` with a point before and after it."""

        def instrumented(*arguments: object, **keywords: object) -> T:
            self.reach(f"before {name}")
            result = call(*arguments, **keywords)
            self.reach(f"after {name}")
            return result

        return instrumented


class ArmedFailPoints(FailPoints):
    """Fail points whose crash is set while processes run, through a file that they share.

    Each process counts for itself. The first to reach the occurrence deletes the file and kills itself.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(None)
        self._file = file

    @override
    def reach(self, point: str) -> None:
        """Note an occurrence of a point; this call may not return."""
        try:
            armed_point, occurrence = self._file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        if armed_point != point:
            return
        with self._lock:
            self._occurrences += 1
            if self._occurrences < int(occurrence):
                return
        with contextlib.suppress(FileNotFoundError):
            self._file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def arm(file: Path, crash: Crash) -> Path:
    """Set the crash for all processes with `ArmedFailPoints` on this file; return the file."""
    draft = file.with_suffix(".draft")
    draft.write_text(f"{crash.point}\n{crash.occurrence}\n", encoding="utf-8")
    return draft.rename(file)


class Instrumented:
    """Wrapper of an object with fail points around the named calls."""

    def __init__(self, inner: object, name: str, calls: Iterable[str], points: FailPoints) -> None:
        self._inner = inner
        for call in calls:
            point = f"{name}.{_POINTS.get(call, call)}"
            setattr(self, call, points.around(point, getattr(inner, call)))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # any attribute of the object
        return getattr(self._inner, name)


def instrument_store(store: ObjectStore, points: FailPoints) -> ObjectStore:
    """Return the store with points around its calls and those of its uploads."""
    instrumented = Instrumented(store, "store", STORE_CALLS, points)
    begin = instrumented.start_upload

    def start_upload(*arguments: object, **keywords: object) -> Instrumented:
        return Instrumented(begin(*arguments, **keywords), "upload", UPLOAD_CALLS, points)

    setattr(instrumented, "start_upload", start_upload)  # noqa: B010  # the attribute is not declared
    return cast("ObjectStore", instrumented)


def instrument_catalog(catalog: Catalog, points: FailPoints) -> Catalog:
    """Return the catalog with points around the calls of its parts."""
    for part, calls in CATALOG_CALLS.items():
        setattr(catalog, part, Instrumented(getattr(catalog, part), part, calls, points))
    return catalog
