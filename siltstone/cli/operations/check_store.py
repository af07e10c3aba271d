"""`siltstone check-store`: try everything that Siltstone does with an object store."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from core.clock import SystemClock
from core.ids import SystemIds
from core.quantities import count
from object_store.open import open_store
from object_store.trial import try_store
from siltstone.cli.options import json_option, with_settings
from siltstone.console import emit_json, report_console, table
from siltstone.context import check_store, store_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from object_store.trial import TrialResult
    from siltstone.settings.configuration import Settings


@click.command()
@json_option
@with_settings()
def command(settings: Settings, *, as_json: bool) -> None:
    """Try everything that Siltstone does with an object store.

    Run it before you use a server, a bucket or credentials for the first time. It writes, reads, lists and
    deletes objects of its own, 8 MiB in total, and checks each result. It needs no catalog, and agents may
    run. The exit code is 1 if an operation does not work that Siltstone needs.
    """
    check_store(settings)
    clock = SystemClock()
    ids = SystemIds(clock)
    config = store_config(settings)
    with contextlib.closing(open_store(config, clock, ids)) as store:
        results = try_store(store, ids, is_s3=not config.is_local)
    failed = [each for each in results if each.problem is not None]
    if as_json:
        emit_json({"object_store": config.url, "operations": [asdict(each) for each in results]})
    else:
        _print(results, failed, is_s3=not config.is_local)
    if failed:
        click.get_current_context().exit(1)


def _print(results: Sequence[TrialResult], failed: Sequence[TrialResult], *, is_s3: bool) -> None:
    console = report_console()
    rows = [
        (each.operation, *([", ".join(each.permissions)] if is_s3 else []), _mark(each)) for each in results
    ]
    columns = ("operation", *(["permissions"] if is_s3 else []), "works")
    console.print(table("Object store", *columns, rows=rows))
    for each in results:
        if each.limitation:
            console.print(
                f"! {each.operation}: {each.limitation}", style="yellow", markup=False, soft_wrap=True
            )
    for each in failed:
        console.print(f"✗ {each.operation}: {each.problem}", style="red", markup=False, soft_wrap=True)
    if failed:
        failures = count(len(failed), "operation")
        console.print(f"✗ {failures} of {len(results)} failed", style="bold red")
    else:
        console.print("✓ the object store does all that Siltstone needs", style="green")


def _mark(result: TrialResult) -> str:
    return "✗" if result.problem else "!" if result.limitation else "✓"
