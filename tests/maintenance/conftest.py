"""Fixtures of the maintenance tests: the planner's small system."""

from __future__ import annotations

from tests.planner.conftest import other_store, store, system

__all__ = ["other_store", "store", "system"]
