"""Places at which a process kills itself, without a trace of them in the product.

A child of a crash test builds the real agent or worker on a store and a catalog that are wrapped: before and
after every call stands a named point. A plan names one of them and the passage at which it strikes.
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
    "commits": ("commit",),
    "sessions": ("register", "heartbeat", "fence_silent", "end"),
    "jobs": ("submit", "claim", "heartbeat", "complete", "release", "release_expired"),
    "garbage": ("dead_files", "known_files", "delete_rows", "remove_deleted"),
}
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
class Strike:
    """Die at the `passage`-th time (1 is the first) that `point` is passed."""

    point: str
    passage: int = 1


class FailPoints:
    """Counts passages; SIGKILL, as a machine that loses its power, when the plan says so."""

    def __init__(self, strike: Strike | None) -> None:
        self._strike = strike
        self._passages = 0
        self._lock = threading.Lock()

    def reach(self, point: str) -> None:
        """Pass a point, or do not."""
        if self._strike is None or self._strike.point != point:
            return
        with self._lock:
            self._passages += 1
            if self._passages == self._strike.passage:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, name: str, call: Callable[..., T]) -> Callable[..., T]:
        """`call` between two points."""

        def guarded(*arguments: object, **keywords: object) -> T:
            self.reach(f"before {name}")
            answer = call(*arguments, **keywords)
            self.reach(f"after {name}")
            return answer

        return guarded


class ArmedPoints(FailPoints):
    """Strikes that are told while the process runs, by a file, to several processes.

    Each counts for itself; the first to come to the passage takes the file away, and only that one dies.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(None)
        self._file = file

    @override
    def reach(self, point: str) -> None:
        try:
            armed, passage = self._file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        if armed != point:
            return
        with self._lock:
            self._passages += 1
            if self._passages < int(passage):
                return
        with contextlib.suppress(FileNotFoundError):
            self._file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def arm(file: Path, strike: Strike) -> Path:
    """Tell those whose `ArmedPoints` look at the file; returns it."""
    draft = file.with_suffix(".draft")
    draft.write_text(f"{strike.point}\n{strike.passage}\n", encoding="utf-8")
    return draft.rename(file)


class Guarded:
    """Stands for an object; the calls named are guarded, everything else is the object's own."""

    def __init__(self, inner: object, name: str, calls: Iterable[str], points: FailPoints) -> None:
        self._inner = inner
        for call in calls:
            setattr(self, call, points.around(f"{name}.{call}", getattr(inner, call)))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever the object has
        return getattr(self._inner, name)


def guard_store(store: ObjectStore, points: FailPoints) -> ObjectStore:
    """The same store with points around its calls, and around those of its uploads."""
    guarded = Guarded(store, "store", STORE_CALLS, points)
    begin = guarded.start_upload

    def start_upload(*arguments: object, **keywords: object) -> Guarded:
        return Guarded(begin(*arguments, **keywords), "upload", UPLOAD_CALLS, points)

    setattr(guarded, "start_upload", start_upload)  # noqa: B010  # the class does not know the name
    return cast("ObjectStore", guarded)


def guard_catalog(catalog: Catalog, points: FailPoints) -> Catalog:
    """The same catalog, its parts with points around their calls."""
    for part, calls in CATALOG_CALLS.items():
        setattr(catalog, part, Guarded(getattr(catalog, part), part, calls, points))
    return catalog
