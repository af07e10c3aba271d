"""Stored configuration of brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from catalog.config import repository
from catalog.config.repository import ALL_BROKERS
from catalog.errors import InvalidConfigError
from catalog.model import Broker

if TYPE_CHECKING:
    from catalog.config.repository import BrokerChanges
    from catalog.open import Catalog
    from core.ids import Ids

_RATE = "leader.replication.throttled.rate"


def rate_of(text: str | None) -> BrokerChanges:
    return lambda _: {_RATE: text}


def stored(catalog: Catalog, *names: str) -> list[dict[str, str]]:
    return [each.as_strings() for each in catalog.broker_configs.find(names).values()]


def test_broker_settings_are_stored_and_reset(catalog: Catalog) -> None:
    catalog.broker_configs.alter("7", rate_of("5"))
    catalog.broker_configs.alter(ALL_BROKERS, rate_of("6"))
    assert stored(catalog, "7", "8", ALL_BROKERS) == [{_RATE: "5"}, {}, {_RATE: "6"}]
    catalog.broker_configs.alter("7", rate_of(None))
    assert stored(catalog, "7", ALL_BROKERS) == [{}, {_RATE: "6"}]
    with pytest.raises(InvalidConfigError, match="at least 0"):
        catalog.broker_configs.alter("7", rate_of("-1"))
    assert stored(catalog, "7") == [{}]


def test_settings_of_brokers_that_are_gone_make_room(
    catalog: Catalog, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node ids of agents without disks are not used again, so nothing else would delete their settings."""
    monkeypatch.setattr(repository, "MAX_CONFIGURED_BROKERS", 2)
    catalog.sessions.register(ids.new_uuid(), "running", Broker(node_id=8, host="h", port=2))
    for name in (ALL_BROKERS, "7", "8"):
        catalog.broker_configs.alter(name, rate_of("5"))
    assert stored(catalog, ALL_BROKERS, "7", "8") == [{_RATE: "5"}, {}, {_RATE: "5"}]
    monkeypatch.setattr(repository, "MAX_CONFIGURED_BROKERS", 1)
    with pytest.raises(InvalidConfigError, match="1 brokers have explicit settings"):
        catalog.broker_configs.alter("8", rate_of("6"))
    assert stored(catalog, ALL_BROKERS, "8") == [{_RATE: "5"}, {_RATE: "5"}]
