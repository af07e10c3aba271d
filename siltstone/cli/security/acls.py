"""`siltstone acls`: add, list and remove ACLs in the catalog, with the vocabulary of Kafka's `kafka-acls.sh`.

The command opens the catalog directly, so it works before any principal has a right.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import click

from catalog.security.acl_bindings import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from core.errors import InvalidInputError
from core.quantities import count
from siltstone.cli.command_group import CommandGroup
from siltstone.cli.options import json_option, with_settings
from siltstone.console import confirm, emit_json, report_console, table
from siltstone.context import open_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from siltstone.settings.configuration import Settings

    Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def _title(value: Operation | ResourceType | PatternType | Permission) -> str:
    """Return Kafka's spelling of a value, such as DescribeConfigs."""
    return value.name.title().replace("_", "")


_OPERATIONS: dict[str, Operation] = {_title(each): each for each in Operation if each is not Operation.ANY}
_PATTERNS = {_title(each): each for each in PatternType}
_OPTIONS: tuple[Decorator, ...] = (
    click.option(
        "--topic", "topics", multiple=True, metavar="NAME", help="Topic; * for all. May be repeated."
    ),
    click.option(
        "--group", "groups", multiple=True, metavar="NAME", help="Group; * for all. May be repeated."
    ),
    click.option(
        "--transactional-id",
        "transactional_ids",
        multiple=True,
        metavar="NAME",
        help="Transactional id; * for all. May be repeated.",
    ),
    click.option("--cluster", is_flag=True, help="The cluster."),
    click.option(
        "--allow-principal", "allowed", multiple=True, metavar="TYPE:NAME", help="Principal to allow."
    ),
    click.option("--deny-principal", "denied", multiple=True, metavar="TYPE:NAME", help="Principal to deny."),
    click.option(
        "--operation",
        "operations",
        multiple=True,
        type=click.Choice(list(_OPERATIONS), case_sensitive=False),
        help="Operation. May be repeated.  [default: All, or any for list and remove]",
    ),
    click.option("--allow-host", "allowed_hosts", multiple=True, metavar="ADDRESS", help="Host to allow."),
    click.option("--deny-host", "denied_hosts", multiple=True, metavar="ADDRESS", help="Host to deny."),
    click.option(
        "--resource-pattern-type",
        "pattern",
        type=click.Choice(list(_PATTERNS), case_sensitive=False),
        default=None,
        help="How names are compared.  [default: literal, or any for list and remove]",
    ),
)


def _with_selection(body: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        body = option(body)
    return body


@click.group(cls=CommandGroup)
def command() -> None:
    """Add, list and remove ACLs."""


@command.command()
@_with_selection
@json_option
@with_settings()
def add(settings: Settings, *, as_json: bool, **selection: Any) -> None:  # noqa: ANN401  # click's values
    """Add ACLs: one for each resource, principal, host and operation.

    Agents enforce them within a second.
    """
    bindings = _bindings(**selection)
    with open_context(settings, check_binding=False) as context:
        added = context.catalog.acls.add(bindings)
    if as_json:
        emit_json({"added": added, "acls": [_fields(each) for each in bindings]})
    else:
        present = len(set(bindings)) - added
        click.echo(
            f"added {count(added, 'ACL')}" + (f"; {count(present, 'ACL')} existed already" if present else "")
        )


@command.command(name="list")
@_with_selection
@json_option
@with_settings()
def list_acls(settings: Settings, *, as_json: bool, **selection: Any) -> None:  # noqa: ANN401  # click's values
    """List the ACLs that match all given options."""
    filters = _filters(**selection)
    with open_context(settings, check_binding=False, create=False) as context:
        stored = context.catalog.acls.load()
    every = [] if stored is None else stored.bindings
    found = [each for each in every if _selects(filters, each)]
    _report("acls", found, otherwise="add one: siltstone acls add", as_json=as_json)


@command.command()
@_with_selection
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@with_settings()
def remove(settings: Settings, *, yes: bool, as_json: bool, **selection: Any) -> None:  # noqa: ANN401  # click's values
    """Remove the ACLs that match all given options.

    Rights end within a second on every agent.
    """
    filters = _filters(**selection)
    with open_context(settings, check_binding=False, create=False) as context:
        stored = context.catalog.acls.load()
        found = [] if stored is None else [each for each in stored.bindings if _selects(filters, each)]
        if found and not yes:
            confirm(f"Remove {count(len(found), 'ACL')}?", refused="no ACL was removed")
        removed = {each for some in context.catalog.acls.remove(filters) for each in some}
    _report("removed", removed, otherwise="see: siltstone acls list", as_json=as_json)


def _bindings(
    *,
    operations: Sequence[str],
    allowed: Sequence[str],
    denied: Sequence[str],
    allowed_hosts: Sequence[str],
    denied_hosts: Sequence[str],
    pattern: str | None,
    **resources: Any,  # noqa: ANN401  # click's values
) -> list[AclBinding]:
    """Return the ACLs that the options describe, as `kafka-acls.sh --add` does."""
    named = _resources(**resources)
    if not named or not (allowed or denied):
        raise InvalidInputError(
            "an ACL needs a resource and a principal",
            remedy="name them, for example with --topic orders --allow-principal User:alice",
        )
    kind = _PATTERNS[_match(_PATTERNS, pattern or "Literal")]
    chosen = [_OPERATIONS[_match(_OPERATIONS, each)] for each in operations] or [Operation.ALL]
    concerned = [
        *product([Permission.ALLOW], allowed, allowed_hosts or (WILDCARD,)),
        *product([Permission.DENY], denied, denied_hosts or (WILDCARD,)),
    ]
    return [
        AclBinding(
            resource_type,
            PatternType.LITERAL if resource_type is ResourceType.CLUSTER else kind,
            name,
            principal,
            host,
            operation,
            permission,
        )
        for (resource_type, name), (permission, principal, host), operation in product(
            named, concerned, chosen
        )
    ]


def _filters(
    *,
    operations: Sequence[str],
    allowed: Sequence[str],
    denied: Sequence[str],
    allowed_hosts: Sequence[str],
    denied_hosts: Sequence[str],
    pattern: str | None,
    **resources: Any,  # noqa: ANN401  # click's values
) -> list[AclFilter]:
    """Return the filters; an ACL matches if one of them selects it."""
    kind = _PATTERNS[_match(_PATTERNS, pattern or "Any")]
    named: list[tuple[ResourceType, str | None]] = [*_resources(**resources)] or [(ResourceType.ANY, None)]
    chosen: list[Operation] = [_OPERATIONS[_match(_OPERATIONS, each)] for each in operations]
    chosen = chosen or [Operation.ANY]
    concerned = [
        *product([Permission.ALLOW], allowed or (None,), allowed_hosts or (None,)),
        *product([Permission.DENY], denied or (None,), denied_hosts or (None,)),
    ]
    if not (allowed or allowed_hosts or denied or denied_hosts):
        concerned = [(Permission.ANY, None, None)]
    elif not (allowed or allowed_hosts):
        concerned = [each for each in concerned if each[0] is Permission.DENY]
    elif not (denied or denied_hosts):
        concerned = [each for each in concerned if each[0] is Permission.ALLOW]
    return [
        AclFilter(resource_type, kind, name, principal, host, operation, permission)
        for (resource_type, name), (permission, principal, host), operation in product(
            named, concerned, chosen
        )
    ]


def _resources(
    *, topics: Sequence[str], groups: Sequence[str], transactional_ids: Sequence[str], cluster: bool
) -> list[tuple[ResourceType, str]]:
    return [
        *((ResourceType.TOPIC, name) for name in topics),
        *((ResourceType.GROUP, name) for name in groups),
        *((ResourceType.TRANSACTIONAL_ID, name) for name in transactional_ids),
        *([(ResourceType.CLUSTER, CLUSTER_NAME)] if cluster else []),
    ]


def _match(known: Iterable[str], text: str) -> str:
    """Return Kafka's spelling of a name that click accepted in any case."""
    return next(each for each in known if each.lower() == text.lower())


def _selects(filters: Iterable[AclFilter], binding: AclBinding) -> bool:
    return any(each.matches(binding) for each in filters)


def _fields(binding: AclBinding) -> dict[str, str]:
    return {
        "resource_type": _title(binding.resource_type),
        "pattern_type": _title(binding.pattern_type),
        "resource_name": binding.resource_name,
        "permission": _title(binding.permission),
        "principal": binding.principal,
        "host": binding.host,
        "operation": _title(binding.operation),
    }


def _report(name: str, bindings: Iterable[AclBinding], *, otherwise: str, as_json: bool) -> None:
    """Print ACLs; `otherwise` is the advice if there are none."""
    rows = [_fields(each) for each in sorted(bindings)]
    if as_json:
        emit_json({name: rows})
    elif not rows:
        click.echo(f"no ACL matches; {otherwise}")
    else:
        columns = [each.replace("_", " ") for each in rows[0]]
        report_console().print(table(None, *columns, rows=[tuple(row.values()) for row in rows]))
