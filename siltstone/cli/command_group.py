"""Command group whose errors about names and the order of options say what to write instead."""

from __future__ import annotations

import click
from typing_extensions import override


class CommandGroup(click.Group):
    """Group of subcommands, each of which has its own options."""

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as failure:  # click knows only names of commands that are loaded
            raise click.NoSuchCommand(
                failure.command_name, possibilities=self.list_commands(ctx), ctx=ctx
            ) from None

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as failure:
            if failure.possibilities:
                raise
            raise click.UsageError(
                f"{failure.message} Options follow the command: {ctx.command_path} COMMAND"
                f" {failure.option_name} …",
                ctx=ctx,
            ) from None
