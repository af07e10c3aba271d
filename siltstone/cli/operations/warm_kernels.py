"""`siltstone warm-kernels`: compile all kernels ahead of time, for images and read-only installations.

It also writes the archive of Spark's classes, with which Java needs half of the time to start a session.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from numba.core import event

from core.clock import SystemClock
from core.errors import SiltstoneError
from core.quantities import count
from object_format.kernels.runtime.identity import KERNEL_DIGEST, short_digest
from siltstone.cli.options import json_option, with_settings
from siltstone.console import emit_json, report_console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from siltstone.settings.configuration import Settings

_PACKAGES: Final = {"agent", "object_format", "spark_jobs"}


@click.command()
@json_option
@with_settings()
def command(settings: Settings, *, as_json: bool) -> None:
    """Compile all kernels of agents and of compaction, and store them.

    Without it, the first processes of an installation compile them, which takes minutes. Run it when an image
    is built, as a user who may write to the installation: processes that may not will use what it stored.
    Compiled code is for the processor model of this machine. NUMBA_CPU_NAME=generic and NUMBA_CPU_FEATURES=
    at build and run time make it fit all models.

    With PySpark and Java, it also archives the classes that Spark loads, so that Java starts a local session
    in half of the processor time. Run it again after an update of either.
    """
    del settings  # the kernels depend on none
    clock = SystemClock()
    begin = clock.monotonic()
    with event.install_recorder("numba:compile") as compilations:
        skipped = [package for package in ("agent", "spark_jobs") if not _warm_up(package)]
    report = {
        "kernels": short_digest(KERNEL_DIGEST),
        "compiled": sum(each.is_start for _, each in compilations.buffer),
        "directories": sorted({str(path) for path in _directories()}),
        "seconds": round(clock.monotonic() - begin, 1),
        "skipped": skipped,
        "class_archive": _record_classes(),
    }
    if as_json:
        emit_json(report)
        return
    console = report_console()
    console.print(
        f"Kernels {report['kernels']}: {count(int(report['compiled']), 'function')} compiled in"
        f" {report['seconds']} s. Compiled code is in:"
    )
    for directory in report["directories"]:
        console.print(f"  {directory}", markup=False, soft_wrap=True)
    for package in skipped:
        console.print(f"Kernels of {package} were skipped, because it is not installed.")
    if report["class_archive"] is not None:
        console.print(f"Spark's classes are in {report['class_archive']}", markup=False, soft_wrap=True)


def _warm_up(package: str) -> bool:
    """Call the kernels of a package; return False if what it needs is not installed."""
    try:
        module = importlib.import_module(f"{package}.warm_up")
    except ModuleNotFoundError:
        return False
    if package == "agent":
        module.warm_up()
        return True
    with tempfile.TemporaryDirectory(prefix="siltstone-warm-kernels-") as directory:
        module.warm_up(Path(directory))
    return True


def _record_classes() -> str | None:
    """Archive Spark's classes; return the file, or None without PySpark, or without a Java that archives."""
    try:
        module = importlib.import_module("spark_jobs.class_recording")
    except ModuleNotFoundError:
        return None
    with tempfile.TemporaryDirectory(prefix="siltstone-warm-kernels-") as directory:
        try:
            archive: Path | None = module.record_classes(Path(directory))
        except SiltstoneError as error:
            click.echo(f"Spark's classes were not archived: {error}", err=True)
            return None
    return None if archive is None else str(archive)


def _directories() -> Iterator[Path]:
    """Yield the directories of compiled code."""
    for module in list(sys.modules.values()):
        if module.__name__.partition(".")[0] not in _PACKAGES:
            continue
        for each in vars(module).values():
            stats: Any = getattr(each, "stats", None)
            if hasattr(each, "py_func") and getattr(stats, "cache_path", None):
                yield Path(stats.cache_path)
