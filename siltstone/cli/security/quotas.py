"""`siltstone quotas`: list, set and remove the quotas of Kafka and HTTP clients, in the catalog."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import click

from catalog.config.quota_entities import EntityType, QuotaEntity, QuotaKey, checked_changes
from core.errors import InvalidInputError, NotFoundError
from siltstone.cli.command_group import CommandGroup
from siltstone.cli.options import json_option, with_settings
from siltstone.console import emit_json, report_console, table
from siltstone.context import open_context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from siltstone.settings.configuration import Settings

_KEYS = ", ".join(QuotaKey)
_NAMES = {EntityType.USER: "user", EntityType.CLIENT_ID: "client id", EntityType.IP: "IP address"}


@click.group(cls=CommandGroup)
def command() -> None:
    """List, set and remove the quotas of Kafka and HTTP clients.

    A quota holds on each agent for itself. Agents apply a change within two seconds.
    """


def _entity_options(body: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name an entity, and pass it."""

    @functools.wraps(body)
    def call(**arguments: object) -> None:
        parts: list[tuple[str, str | None]] = []
        for kind in EntityType:
            name, is_default = arguments.pop(_field(kind)), arguments.pop(f"{_field(kind)}_default")
            if name is not None:
                parts.append((kind, str(name)))
            if is_default:
                parts.append((kind, None))
        body(entity=QuotaEntity.of(parts), **arguments)

    wrapped: Callable[..., None] = call
    for kind in reversed(EntityType):
        text = f"The default of each {_NAMES[kind]} without its own quota."
        wrapped = click.option(f"--{kind}-default", _field(kind) + "_default", is_flag=True, help=text)(
            wrapped
        )
        wrapped = click.option(f"--{kind}", _field(kind), metavar="NAME", help=f"This {_NAMES[kind]}.")(
            wrapped
        )
    return wrapped


def _field(kind: EntityType) -> str:
    return kind.replace("-", "_")


@command.command(name="list")
@json_option
@with_settings()
def list_quotas(settings: Settings, *, as_json: bool) -> None:
    """List all quotas."""
    with open_context(settings, check_binding=False, create=False) as context:
        found = sorted(context.catalog.client_quotas.list().items(), key=str)
    if as_json:
        emit_json({"quotas": [_fields(entity, values) for entity, values in found]})
    elif not found:
        click.echo("there are no quotas; set one: siltstone quotas set --help")
    else:
        rows = [
            (str(entity), key, _number(value))
            for entity, values in found
            for key, value in sorted(values.items())
        ]
        report_console().print(table(None, "entity", "quota", ">value", rows=rows))


@command.command(name="set")
@_entity_options
@click.argument("quotas", metavar="QUOTA=VALUE...", nargs=-1, required=True)
@json_option
@with_settings()
def set_quotas(settings: Settings, *, entity: QuotaEntity, quotas: tuple[str, ...], as_json: bool) -> None:
    """Set quotas of a user, a client id, both, or an IP address.

    QUOTA is producer_byte_rate or consumer_byte_rate (bytes per second), request_percentage (100 is one
    thread), controller_mutation_rate (partitions per second), or connection_creation_rate (per second, of an
    IP address).
    """
    changes = checked_changes(entity, [_assignment(text) for text in quotas])
    with open_context(settings, check_binding=False) as context:
        context.catalog.client_quotas.alter({entity: changes})
        values = context.catalog.client_quotas.list().get(entity, {})
    if as_json:
        emit_json(_fields(entity, values))
    else:
        assigned = (f"{key}={_number(value, '')}" for key, value in sorted(values.items()))
        click.echo(f"{entity}: {', '.join(assigned)}")


@command.command()
@_entity_options
@click.argument("quotas", metavar="[QUOTA...]", nargs=-1)
@json_option
@with_settings()
def remove(settings: Settings, *, entity: QuotaEntity, quotas: tuple[str, ...], as_json: bool) -> None:
    """Remove quotas of a user, a client id, both, or an IP address.

    Without QUOTA, all of them are removed.
    """
    with open_context(settings, check_binding=False, create=False) as context:
        present = context.catalog.client_quotas.list().get(entity, {})
        removed = sorted(set(quotas or present) & present.keys())
        if not removed:
            raise NotFoundError(f"{entity} has no such quota", remedy="see siltstone quotas list")
        context.catalog.client_quotas.alter({entity: dict.fromkeys(removed)})
    if as_json:
        emit_json({**_fields(entity, {}), "removed": removed})
    else:
        click.echo(f"removed {', '.join(removed)} of {entity}")


def _assignment(text: str) -> tuple[str, float]:
    key, _, value = text.partition("=")
    try:
        return key, float(value)
    except ValueError:
        raise InvalidInputError(
            f"{text!r} is not QUOTA=VALUE", remedy=f"give a number, and one of {_KEYS}"
        ) from None


def _fields(entity: QuotaEntity, values: Mapping[str, float]) -> dict[str, object]:
    return {"entity": {str(kind): name for kind, name in entity.parts()}, "quotas": dict(values)}


def _number(value: float, separator: str = ",") -> str:
    """Return a quota with all its digits, and without a fraction if it is a whole number."""
    return f"{int(value) if value.is_integer() else value:{separator}}"
