"""Configuration of consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from catalog.config import repository as group_configs
from catalog.config.definitions import GROUP_SETTINGS
from catalog.config.values import GroupConfig
from catalog.errors import InvalidConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from catalog.config.repository import Changes
    from catalog.open import Catalog

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def to(changes: Mapping[str, str | None]) -> Changes:
    return lambda _: changes


def test_group_settings_are_stored_and_reset(catalog: Catalog) -> None:
    """The group need not exist."""
    assert catalog.group_configs.get("g") == GroupConfig()
    catalog.group_configs.alter("g", to({SESSION: "50000", HEARTBEAT: "6000"}))
    found = catalog.group_configs.get("g")
    assert (found.session_timeout_ms, found.heartbeat_interval_ms) == (50_000, 6_000)
    catalog.group_configs.alter("h", to({SESSION: "46000"}))
    assert catalog.group_configs.alter("g", to({HEARTBEAT: None})).as_strings() == {SESSION: "50000"}
    assert list(catalog.group_configs.list()) == ["g", "h"]
    catalog.group_configs.alter("g", lambda before: dict.fromkeys(before.as_strings()))
    assert catalog.group_configs.get("g") == GroupConfig()
    assert list(catalog.group_configs.list()) == ["h"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (SESSION, "soon", "an integer of at least 1"),
        (SESSION, "0", "an integer of at least 1"),
        (SESSION, str(2**31), "an integer of at least 1"),
        ("consumer.assignment.interval.ms", "1000", "assigned as soon as"),
        ("consumer.sesion.timeout.ms", "1", "did you mean consumer.session.timeout.ms?"),
        ("share.session.timeout.ms", "45000", "consumer.session.timeout.ms"),
    ],
)
def test_an_invalid_group_setting_is_named_and_changes_nothing(
    catalog: Catalog, name: str, value: str, expected: str
) -> None:
    with pytest.raises(InvalidConfigError) as rejected:
        catalog.group_configs.alter("g", to({name: value}))
    assert expected in str(rejected.value)
    assert "group setting" in str(rejected.value)
    assert rejected.value.setting == name
    assert catalog.group_configs.list() == {}


def test_the_caller_can_reject_the_new_configuration(catalog: Catalog) -> None:
    def reject(config: GroupConfig) -> None:
        raise InvalidConfigError(f"not {config.session_timeout_ms}", setting=SESSION, remedy="none")

    with pytest.raises(InvalidConfigError, match="not 50000"):
        catalog.group_configs.alter("g", to({SESSION: "50000"}), reject)
    assert catalog.group_configs.list() == {}


def test_the_number_of_groups_with_settings_is_limited(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that have settings can still change and reset them."""
    monkeypatch.setattr(group_configs, "MAX_CONFIGURED_GROUPS", 1)
    catalog.group_configs.alter("g", to({SESSION: "50000"}))
    with pytest.raises(InvalidConfigError, match="1 groups"):
        catalog.group_configs.alter("h", to({SESSION: "50000"}))
    catalog.group_configs.alter("g", to({SESSION: "46000"}))
    catalog.group_configs.alter("g", to({SESSION: None}))
    catalog.group_configs.alter("h", to({SESSION: "50000"}))
    assert list(catalog.group_configs.list()) == ["h"]


def test_group_defaults_are_valid() -> None:
    for setting in GROUP_SETTINGS.values():
        assert setting.parse(setting.default) == GroupConfig().value(setting.name)
