"""Fixtures of the catalog's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.catalog.scene import Scene

if TYPE_CHECKING:
    from catalog.open import Catalog
    from core.ids import Ids


@pytest.fixture
def scene(catalog: Catalog, ids: Ids) -> Scene:
    """Return an empty catalog with a session."""
    return Scene.set_up(catalog, ids)
