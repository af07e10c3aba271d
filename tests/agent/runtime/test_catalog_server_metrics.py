"""Metrics of the catalog's server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agent.runtime.metrics import CatalogServerCollector
from catalog.database.server_state import Replication


def _samples(server: Any) -> dict[str, float]:  # noqa: ANN401  # has the two attributes that are read
    families = CatalogServerCollector(server).collect()
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_weak_durability_is_shown() -> None:
    for unsafe, value in (((), 0), (("fsync=off",), 1)):
        server = SimpleNamespace(unsafe_settings=unsafe, replication=None)
        assert _samples(server) == {"siltstone_catalog_unsafe_commits": value}


def test_standbys_are_shown_if_the_role_may_see_them() -> None:
    replication = Replication(standbys=3, synchronous_standbys=2, lag_bytes=4096)
    server = SimpleNamespace(unsafe_settings=(), replication=replication)
    assert _samples(server) == {
        "siltstone_catalog_unsafe_commits": 0,
        "siltstone_catalog_standbys": 3,
        "siltstone_catalog_synchronous_standbys": 2,
        "siltstone_catalog_replication_lag_bytes": 4096,
    }
