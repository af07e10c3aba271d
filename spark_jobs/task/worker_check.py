"""Check of one worker before jobs are claimed: versions, credentials, permissions and directories.

The packages with kernels are imported inside the check, because a failing import is one of its findings.
"""

from __future__ import annotations

import importlib
import platform
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

import orjson
import pyarrow as pa

from core.clock import SystemClock
from core.errors import SiltstoneError
from core.ids import SystemIds
from object_store.accounting import Purpose
from object_store.binding import read_identity
from object_store.names import WRITE_CHECK_NAME
from object_store.open import open_store
from spark_jobs.arrow_rows import record_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from uuid import UUID

    from object_store.open import StoreConfig

CHECK_SCHEMA = "worker binary"
_ARROW_SCHEMA = pa.schema([("worker", pa.binary())])
_KERNEL_MODULES: Final = ("spark_jobs.task.compaction_task", "spark_jobs.shuffle.stages")
_MARKER: Final = b"Workers write this object to check that they may write. It can be deleted.\n"


@dataclass(slots=True, kw_only=True)
class WorkerReport:
    """Versions of one process by name, and what prevents it from running jobs."""

    host: str
    versions: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def pack(self) -> bytes:
        """Return JSON."""
        return orjson.dumps(asdict(self))

    @classmethod
    def unpack(cls, data: bytes) -> WorkerReport:
        """Reverse `pack`."""
        return cls(**orjson.loads(data))


class WorkerCheck:
    """Picklable function for `mapInArrow` that yields a row of `CHECK_SCHEMA` for each task."""

    def __init__(self, store: StoreConfig, store_id: UUID | None) -> None:
        self._store = store
        self._store_id = store_id

    def reports(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Check this worker."""
        for _ in batches:
            pass
        report = report_of_this_process()
        report.problems += self._store_problems()
        yield record_batch([(report.pack(),)], _ARROW_SCHEMA)

    def _store_problems(self) -> Iterator[str]:
        clock = SystemClock()
        yield from _problems(lambda: self._check_store(clock))

    def _check_store(self, clock: SystemClock) -> str | None:
        """Read the store's marker, and write an object."""
        store = open_store(self._store, clock, SystemIds(clock))
        try:
            found = read_identity(store)
            if self._store_id is not None and found != self._store_id:
                return (
                    f"{store.url} is not the catalog's store: its marker is {found}, not {self._store_id}"
                    " (correct the mount, the bucket or the endpoint)"
                )
            store.put(WRITE_CHECK_NAME, [_MARKER], purpose=Purpose.CHECK)
            with suppress(SiltstoneError):  # jobs delete nothing, so workers need not be allowed to
                store.delete([WRITE_CHECK_NAME], purpose=Purpose.CHECK)
        finally:
            store.close()
        return None


def report_of_this_process() -> WorkerReport:
    """Return the versions of this process; its kernels must be importable, and storable once compiled."""
    report = WorkerReport(host=socket.gethostname())
    report.versions = {
        "siltstone": _version_of("siltstone"),
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "numba": _series(_version_of("numba")),
        "pyarrow": _series(_version_of("pyarrow")),
    }
    report.problems += _problems(lambda: _check_kernels(report))
    return report


def _check_kernels(report: WorkerReport) -> None:
    for module in _KERNEL_MODULES:
        importlib.import_module(module)
    report.versions["kernels"] = importlib.import_module(
        "object_format.kernels.runtime.identity"
    ).KERNEL_DIGEST[:12]


def _problems(check: Callable[[], str | None]) -> Iterator[str]:
    try:
        problem = check()
    except SiltstoneError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 -- any error here fails every job, and must be reported
        problem = f"{type(error).__name__}: {error}"
    if problem is not None:
        yield problem


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _series(text: str) -> str:
    """Return the first two numbers of a version."""
    return ".".join(text.split(".")[:2])
