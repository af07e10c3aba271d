"""`siltstone users`: add, list and delete the users of Kafka and HTTP clients, in the catalog."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from catalog.security.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramMechanism,
    check_user_name,
    new_credential,
)
from core.errors import InvalidInputError, NotFoundError
from core.quantities import count
from siltstone.cli.command_group import CommandGroup
from siltstone.cli.options import json_option, with_settings
from siltstone.console import ask_for_password, confirm, emit_json, report_console, table
from siltstone.context import open_context

if TYPE_CHECKING:
    from siltstone.settings.configuration import Settings

_MAX_PASSWORD_BYTES = 64 * 1024
_MECHANISMS = {each.sasl_name: each for each in ScramMechanism}


@click.group(cls=CommandGroup)
def command() -> None:
    """Add, list and delete the users of Kafka and HTTP clients."""


@command.command()
@click.argument("name")
@click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(list(_MECHANISMS)),
    multiple=True,
    help="SCRAM mechanism that the user can log in with. May be repeated.  [default: both]",
)
@click.option(
    "--iterations",
    type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
    default=MIN_ITERATIONS,
    show_default=True,
    help="Iterations of the password's hash. Use the same number for all users.",
)
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Read the password from the first line of FILE, or of standard input (-).  [default: ask for it]",
)
@json_option
@with_settings()
def add(
    settings: Settings,
    *,
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    password_file: Path | None,
    as_json: bool,
) -> None:
    """Add user NAME, or change its password.

    The catalog stores keys that verify the password and from which it cannot be computed. PLAIN and HTTP's
    Basic authentication use the same password.
    """
    check_user_name(name)
    password = _read_password(password_file)
    chosen = [_MECHANISMS[each] for each in dict.fromkeys(mechanisms or _MECHANISMS)]
    with open_context(settings, check_binding=False) as context:
        new = [(name, new_credential(each, password, context.ids, iterations=iterations)) for each in chosen]
        context.catalog.users.alter(upsertions=new)
    if as_json:
        emit_json({"user": name, "mechanisms": [each.sasl_name for each in chosen]})
    else:
        click.echo(f"set the password of {name} for {', '.join(each.sasl_name for each in chosen)}")


def _read_password(file: Path | None) -> str:
    """Return the password of a file, or ask for it; it is never an argument, which other users could see."""
    if file is None:
        return ask_for_password()
    try:
        with click.open_file(str(file), encoding="utf-8") as lines:
            line: str = lines.readline(_MAX_PASSWORD_BYTES).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else "it is not UTF-8"
        raise InvalidInputError(f"the password file {file} cannot be read: {reason}") from None
    if not line:
        raise InvalidInputError(
            f"the first line of password file {file} is empty", remedy="write the password there"
        )
    return line


@command.command(name="list")
@json_option
@with_settings()
def list_users(settings: Settings, *, as_json: bool) -> None:
    """List all users with their mechanisms."""
    with open_context(settings, check_binding=False, create=False) as context:
        found = context.catalog.users.describe()
    if as_json:
        fields = [
            {"user": each.user, "mechanism": each.mechanism.sasl_name, "iterations": each.iterations}
            for each in found
        ]
        emit_json({"credentials": fields})
    elif not found:
        click.echo("there are no users; add one: siltstone users add NAME")
    else:
        rows = [(each.user, each.mechanism.sasl_name, each.iterations) for each in found]
        report_console().print(table(None, "user", "mechanism", ">iterations", rows=rows))


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@with_settings()
def delete(settings: Settings, *, name: str, yes: bool, as_json: bool) -> None:
    """Delete user NAME.

    Connections that the user has opened stay open until their session ends (connections_max_reauth_ms).
    """
    with open_context(settings, check_binding=False, create=False) as context:
        found = context.catalog.users.describe([name])
        if found and not yes:
            confirm(f"Delete user {name}?", refused=f"user {name} was not deleted")
        deleted = context.catalog.users.delete(name) if found else 0
    if not deleted:
        raise NotFoundError(f"there is no user {name!r}", remedy="see: siltstone users list")
    if as_json:
        emit_json({"user": name, "deleted_credentials": deleted})
    else:
        click.echo(f"deleted user {name} with {count(deleted, 'credential')}")
