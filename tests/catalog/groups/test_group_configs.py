"""Settings of consumer groups in the catalog."""

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


def test_what_was_set_for_a_group_is_found_and_taken_back(catalog: Catalog) -> None:
    """The group itself need not be there."""
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
    ("name", "value", "says"),
    [
        (SESSION, "soon", "a whole number from 1"),
        (SESSION, "0", "a whole number from 1"),
        (SESSION, str(2**31), "a whole number from 1"),
        ("consumer.assignment.interval.ms", "1000", "assigned as soon as"),
        ("consumer.sesion.timeout.ms", "1", "did you mean consumer.session.timeout.ms?"),
        ("share.session.timeout.ms", "45000", "consumer.session.timeout.ms"),
    ],
)
def test_a_wrong_setting_of_a_group_is_named_and_changes_nothing(
    catalog: Catalog, name: str, value: str, says: str
) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        catalog.group_configs.alter("g", to({name: value}))
    assert says in str(refused.value)
    assert "group setting" in str(refused.value)
    assert refused.value.setting == name
    assert catalog.group_configs.list() == {}


def test_who_alters_a_group_may_forbid_the_outcome(catalog: Catalog) -> None:
    def forbid(config: GroupConfig) -> None:
        raise InvalidConfigError(f"not {config.session_timeout_ms}", setting=SESSION, remedy="none")

    with pytest.raises(InvalidConfigError, match="not 50000"):
        catalog.group_configs.alter("g", to({SESSION: "50000"}), forbid)
    assert catalog.group_configs.list() == {}


def test_only_so_many_groups_have_settings(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have some can still change and lose them."""
    monkeypatch.setattr(group_configs, "MAX_CONFIGURED_GROUPS", 1)
    catalog.group_configs.alter("g", to({SESSION: "50000"}))
    with pytest.raises(InvalidConfigError, match="1 groups"):
        catalog.group_configs.alter("h", to({SESSION: "50000"}))
    catalog.group_configs.alter("g", to({SESSION: "46000"}))
    catalog.group_configs.alter("g", to({SESSION: None}))
    catalog.group_configs.alter("h", to({SESSION: "50000"}))
    assert list(catalog.group_configs.list()) == ["h"]


def test_defaults_of_groups_fit_their_own_rules() -> None:
    for setting in GROUP_SETTINGS.values():
        assert setting.parse(setting.default) == GroupConfig().value(setting.name)
