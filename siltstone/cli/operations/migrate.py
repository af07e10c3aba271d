"""`siltstone migrate`: create or migrate the schema of the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from catalog.open import MigrationPlan, SchemaVersion, migrate_catalog, plan_migration
from core.clock import SystemClock
from core.ids import SystemIds
from core.quantities import count
from siltstone.cli.options import json_option, with_settings
from siltstone.console import emit_json, report_console
from siltstone.context import catalog_url, database_limits

if TYPE_CHECKING:
    from siltstone.settings.configuration import Settings


@click.command()
@click.option(
    "--dry-run", is_flag=True, help="List the migrations that would be applied, and change nothing."
)
@click.option(
    "--check",
    is_flag=True,
    help="Change nothing. Exit with code 1 if a migration is missing, and with 78 if a contraction excludes "
    "this version.",
)
@json_option
@with_settings()
def command(settings: Settings, *, dry_run: bool, check: bool, as_json: bool) -> None:
    """Create or migrate the schema of the catalog.

    An empty database gets the schema. Agents, compaction and maintenance may run meanwhile. Each migration is
    one transaction that waits for locks only briefly and is repeated. If the command stops, the next run
    continues. Expansions leave older processes working. A contraction ends processes that know no schema
    version from its minimum on. The embedded catalog migrates itself.
    """
    clock = SystemClock()
    ids = SystemIds(clock)
    limits = database_limits(settings)
    with catalog_url(settings, create=not (dry_run or check)) as url:
        plan = plan_migration(url, clock, ids, limits=limits)
        if not (dry_run or check):
            console = report_console()
            found = migrate_catalog(
                url,
                clock,
                ids,
                limits=limits,
                report=lambda line: None if as_json else console.print(line, markup=False),
            )
            _report(plan, found, as_json=as_json)
            return
    _report_missing(plan, as_json=as_json)
    if check and plan.missing:
        click.get_current_context().exit(1)


def _report(plan: MigrationPlan, found: SchemaVersion, *, as_json: bool) -> None:
    if as_json:
        emit_json({"version": found.version, "min_version": found.min_version, "applied": _names(plan)})
        return
    report_console().print(f"The catalog has schema version {found.version}.")


def _report_missing(plan: MigrationPlan, *, as_json: bool) -> None:
    found = plan.found
    if as_json:
        emit_json({"version": found.version, "min_version": found.min_version, "missing": _names(plan)})
        return
    console = report_console()
    if not found.version:
        console.print("The database has no catalog; siltstone migrate creates it.")
        return
    console.print(
        f"The catalog has schema version {found.version}; missing: {count(len(plan.missing), 'migration')}."
    )
    for migration in plan.missing:
        console.print(f"  {migration.file_name} ({migration.kind})", markup=False)


def _names(plan: MigrationPlan) -> list[dict[str, Any]]:
    return [{"migration": each.file_name, "kind": each.kind} for each in plan.missing]
