"""The `siltstone` command: its subcommands, and the one place that reports their errors.

The module of a subcommand is loaded only when the subcommand is called. `siltstone --help` is therefore fast,
and `siltstone topics list` does not load Spark. The summaries are repeated here for that reason; a test
compares them with the subcommands.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import re
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from typing_extensions import override

from catalog.errors import SchemaVersionError
from core.errors import BackgroundTaskError, InvalidInputError, RetryableError, SiltstoneError
from core.exit_codes import (
    FAILED,
    INTERRUPTED,
    PART_FAILED,
    TEMPORARY_FAILURE,
    WRONG_SCHEMA,
    WRONG_USAGE,
)
from siltstone.cli.command_group import CommandGroup
from siltstone.interrupts import interrupt_on_signals
from siltstone.settings.sources import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "agent": "Run an agent, the broker that serves Kafka and HTTP clients.",
    "topics": "Create, change, list, describe, delete and undelete topics.",
    "quotas": "List, set and remove the quotas of Kafka and HTTP clients.",
    "acls": "Add, list and remove ACLs.",
    "users": "Add, list and delete the users of Kafka and HTTP clients.",
    "produce": "Send lines of standard input or of FILES to TOPIC, as a Kafka producer.",
    "consume": "Print the records of TOPIC, as a Kafka consumer.",
    "plan": "Show the compaction jobs that would be planned now, with the reasons.",
    "simulate": "Simulate the resources and the cost of a workload over time.",
    "compact": "Plan compaction jobs, and run them on Spark.",
    "quarantine": "List the files that compaction leaves out, or allow it to retry them.",
    "maintain": "Apply retention and delete garbage, without Spark.",
    "fsck": "Check that the catalog and the object store agree.",
    "migrate": "Create or migrate the schema of the catalog.",
    "check-store": "Try everything that Siltstone does with an object store.",
    "warm-kernels": "Compile all kernels of agents and of compaction, and store them.",
    "demo": "Run a year of real flight data through the whole system and check every record.",
}

EXTRAS = {
    "agent": "agent",
    "topics": "agent",
    "quotas": "agent",
    "acls": "agent",
    "users": "agent",
    "produce": "client",
    "consume": "client",
    "plan": "planner",
    "simulate": "planner",
    "compact": "planner",
    "quarantine": "planner",
    "maintain": "planner",
    "fsck": "planner",
    "migrate": "agent",
    "check-store": "agent",
    "warm-kernels": "worker",
    "demo": "demo",
}
"""The extra of the distribution that installs what each command needs."""

_AREAS: Final = {
    "data": ("topics", "produce", "consume"),
    "security": ("quotas", "acls", "users"),
    "compaction": ("plan", "simulate", "compact", "quarantine"),
    "operations": ("agent", "maintain", "fsck", "migrate", "check-store", "warm-kernels"),
}
"""The commands in each sub-package. Other commands have their modules next to this one."""


_URL: Final = re.compile(r"(\w+://).*", re.DOTALL)
"""A URL in the wrong place of a command line, which may have a password, and all that follows it."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Numbers of errors of a disk that takes no more bytes."""
_URL_WITH_PASSWORD: Final = re.compile(r"(\w+://)(?=.*(?:@|password)).*", re.DOTALL)
"""A URL that may have a password, to the end of an argument of the command line."""


def module_of(command: str) -> str:
    """Return the name of the module of a command."""
    area = next((f"{name}." for name, commands in _AREAS.items() if command in commands), "")
    return f"siltstone.cli.{area}{command.replace('-', '_')}"


class LazyGroup(CommandGroup):
    """Command group that loads subcommands by name and turns errors into messages and exit codes."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            module = importlib.import_module(module_of(cmd_name))
        except ModuleNotFoundError as failure:
            raise _not_installed(cmd_name, failure) from failure
        command: click.Command = module.command
        return command

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["siltstone.arguments"] = tuple(args)
        return super().parse_args(ctx, args)

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            with interrupt_on_signals():
                return super().invoke(ctx)
        except click.UsageError as failure:
            text = failure.format_message()
            if (shown := _URL.sub(r"\1…", text)) != text:
                raise click.UsageError(shown, ctx=failure.ctx) from None
            raise
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (Exception, KeyboardInterrupt) as failure:  # noqa: BLE001 - this is the outermost handler
            debug = bool(ctx.meta.get("siltstone.debug"))
            # Some commands load a part of their code only when they run.
            if isinstance(failure, ModuleNotFoundError) and ctx.invoked_subcommand is not None:
                failure = _not_installed(ctx.invoked_subcommand, failure)
            arguments: tuple[str, ...] = ctx.meta["siltstone.arguments"]
            ctx.exit(report_error(failure, debug=debug, arguments=arguments))


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="siltstone", message="%(prog)s %(version)s")
def cli() -> None:
    """A Kafka-compatible log that stores its data in an object store.

    Settings are read from siltstone.toml in the data directory (or the file of --config), from SILTSTONE_*
    environment variables and from options. A later source overrides an earlier one.

    Exit codes: 0 success, 1 failure, 2 wrong usage or configuration, 75 temporary failure (retry later),
    78 the schema of the catalog does not fit this version, 70 a part of the process has ended (restart it),
    130 interrupted. Every command has its own --help.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit the process."""
    try:
        cli.main(args=None if arguments is None else list(arguments), prog_name="siltstone")
    except OSError as failure:  # of the help, which is printed before a command is invoked
        sys.exit(report_error(failure, debug=False))
    finally:
        # An ending interpreter collects garbage several times, among all objects of all loaded modules.
        gc.freeze()
    sys.exit(0)  # pragma: no cover - click has exited already


def report_error(failure: BaseException, *, debug: bool, arguments: Sequence[str] = ()) -> int:
    """Print an error on standard error and return the exit code; `debug` adds the traceback.

    Of URLs with a password among the command's `arguments`, only the scheme is printed.
    """
    if isinstance(failure, KeyboardInterrupt | click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    if isinstance(failure, BrokenPipeError) or getattr(failure, "errno", None) == errno.EPIPE:
        # The reader closed the pipe. Stay silent, and discard what the interpreter flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    if isinstance(failure, OSError) and failure.errno in _FULL:
        what = failure.filename or "the output"
        click.echo(f"error: {what} cannot be written: {failure.strerror} (free some space)", err=True)
        return FAILED
    message = _hide_passwords(str(failure), arguments)
    trace = _hide_passwords("".join(traceback.format_exception(failure)), arguments)
    if debug:
        click.echo(trace, err=True, nl=False)
    if isinstance(failure, SiltstoneError):
        click.echo(f"error: {message}", err=True)
        return _exit_code(failure)
    click.echo(f"error: unexpected {type(failure).__name__}: {message}", err=True)
    if not debug:
        click.echo(f"  this is a bug in Siltstone; {_save(trace)}", err=True)
    return FAILED


def _hide_passwords(text: str, arguments: Sequence[str]) -> str:
    """Shorten URLs that may have a password, in the forms in which a message can quote an argument."""
    for found in filter(None, map(_URL_WITH_PASSWORD.search, arguments)):
        for form in (found[0], repr(found[0])[1:-1], str(Path(found[0]))):
            text = text.replace(form, f"{found[1]}…")
    return text


def _not_installed(command: str, failure: ModuleNotFoundError) -> InvalidInputError:
    return InvalidInputError(
        f"siltstone {command} needs the Python package {failure.name!r}, which is not installed",
        remedy=f"pip install 'siltstone[{EXTRAS[command]}]'",
    )


def _exit_code(failure: SiltstoneError) -> int:
    if isinstance(failure, ConfigurationError):
        return WRONG_USAGE
    if isinstance(failure, RetryableError):
        return TEMPORARY_FAILURE
    if isinstance(failure, BackgroundTaskError):
        return PART_FAILED
    if isinstance(failure, SchemaVersionError):
        return WRONG_SCHEMA
    return FAILED


def _save(trace: str) -> str:
    """Store a traceback in a temporary file; return where it is, or how to get it."""
    try:
        handle, name = tempfile.mkstemp(prefix="siltstone-error-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(trace)
    except OSError:
        return "run it again with --debug for the traceback"
    return f"the traceback is in {name}"
