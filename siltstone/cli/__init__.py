"""The `siltstone` command."""

from siltstone.cli.entry import main

__all__ = ["main"]
