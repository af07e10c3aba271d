"""The `siltstone` command."""

from siltstone.cli.main import main

__all__ = ["main"]
