"""The `siltstone` command."""

from siltstone.command.entry import main

__all__ = ["main"]
