"""Stored client quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from catalog.config import client_quotas
from catalog.config.quota_entities import DEFAULT, EntityType, QuotaEntity, checked_changes, matches
from catalog.errors import InvalidQuotaError

if TYPE_CHECKING:
    from catalog.open import Catalog

_ALICE = QuotaEntity(user="alice")
_DEFAULT_OF_ALICE = QuotaEntity(user="alice", client_id=DEFAULT)


def test_quotas_are_stored_changed_and_removed(catalog: Catalog) -> None:
    """A change of one entity is visible under a new version; an unchanged version returns nothing."""
    quotas = catalog.client_quotas
    assert quotas.changed_since(None) is None
    quotas.alter({_ALICE: {"producer_byte_rate": 5.0, "request_percentage": 1.5}, _DEFAULT_OF_ALICE: {}})
    first = quotas.changed_since(None)
    assert first is not None
    assert first.quotas == {_ALICE: {"producer_byte_rate": 5.0, "request_percentage": 1.5}}
    assert quotas.changed_since(first.version) is None
    quotas.alter(
        {
            _ALICE: {"producer_byte_rate": None, "consumer_byte_rate": 7.0},
            _DEFAULT_OF_ALICE: {"producer_byte_rate": 3.0},
        }
    )
    second = quotas.changed_since(first.version)
    assert second is not None
    assert second.version != first.version
    assert second.quotas == {
        _ALICE: {"request_percentage": 1.5, "consumer_byte_rate": 7.0},
        _DEFAULT_OF_ALICE: {"producer_byte_rate": 3.0},
    }
    quotas.alter(dict.fromkeys(second.quotas, dict.fromkeys(["producer_byte_rate", "consumer_byte_rate"])))
    quotas.alter({_ALICE: {"request_percentage": None, "controller_mutation_rate": None}})
    last = quotas.changed_since(second.version)
    assert last is not None
    assert (last.version is None, last.quotas) == (False, {})


def test_too_many_entities_change_nothing(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "MAX_ENTITIES", 1)
    catalog.client_quotas.alter({_ALICE: {"producer_byte_rate": 5.0}})
    with pytest.raises(InvalidQuotaError, match="1 users"):
        catalog.client_quotas.alter({_DEFAULT_OF_ALICE: {"producer_byte_rate": 5.0}})
    assert catalog.client_quotas.list() == {_ALICE: {"producer_byte_rate": 5.0}}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "empty"),
        ([("user", "")], "empty"),
        ([("user", "a"), ("user", None)], "two names"),
        ([("group", "a")], "no entity type"),
        ([("ip", "10.0.0.1"), ("user", "a")], "cannot be combined"),
        ([("ip", "nowhere.example")], "not an IP address"),
        ([("client-id", "x" * 1001)], "more than 1000 bytes"),
        ([("client-id", "a\0b")], "NUL"),
    ],
)
def test_invalid_entities_are_rejected(parts: list[tuple[str, str | None]], message: str) -> None:
    with pytest.raises(InvalidQuotaError, match=message):
        QuotaEntity.of(parts)


def test_an_address_has_one_form() -> None:
    """However it is written, it is the one that sockets report."""
    for text in ("::ffff:10.0.0.1", "10.0.0.1"):
        assert QuotaEntity.of([("ip", text)]) == QuotaEntity(ip="10.0.0.1")
    assert QuotaEntity.of([("ip", "2001:DB8:0::1")]) == QuotaEntity(ip="2001:db8::1")
    assert QuotaEntity.of([("ip", None)]) == QuotaEntity(ip=DEFAULT)


@pytest.mark.parametrize(
    ("entity", "key", "value", "message"),
    [
        (_ALICE, "connection_creation_rate", 1.0, "cannot have a quota"),
        (QuotaEntity(ip=DEFAULT), "producer_byte_rate", 1.0, "cannot have a quota"),
        (_ALICE, "bytes", 1.0, "cannot have a quota"),
        (_ALICE, "producer_byte_rate", 0.0, "cannot be 0"),
        (_ALICE, "request_percentage", float("nan"), "cannot be nan"),
        (_ALICE, "request_percentage", float("inf"), "cannot be inf"),
        (_ALICE, "producer_byte_rate", 1.5, "cannot be 1.5"),
        (_ALICE, "producer_byte_rate", 1e19, "cannot be 1e"),
        (QuotaEntity(ip=DEFAULT), "connection_creation_rate", 2.0**31, "cannot be 2147483648"),
    ],
)
def test_invalid_quotas_are_rejected(entity: QuotaEntity, key: str, value: float, message: str) -> None:
    with pytest.raises(InvalidQuotaError, match=message):
        checked_changes(entity, [(key, value)])


def test_a_quota_is_changed_once() -> None:
    with pytest.raises(InvalidQuotaError, match="named twice"):
        checked_changes(_ALICE, [("request_percentage", 1.5), ("request_percentage", None)])
    assert checked_changes(_ALICE, [("request_percentage", 1.5), ("unknown", None)]) == {
        "request_percentage": 1.5,
        "unknown": None,
    }


def test_entities_match_by_name_and_type() -> None:
    user, client_id = EntityType.USER, EntityType.CLIENT_ID
    assert matches(_ALICE, {user: "alice"}, strict=True)
    assert matches(_ALICE, {user: None}, strict=True)
    assert matches(_ALICE, {}, strict=False)
    assert not matches(_ALICE, {}, strict=True)
    assert not matches(_ALICE, {user: "alice", client_id: None}, strict=False)
    assert not matches(_ALICE, {user: DEFAULT}, strict=False)
    assert matches(_DEFAULT_OF_ALICE, {user: "alice"}, strict=False)
    assert not matches(_DEFAULT_OF_ALICE, {user: "alice"}, strict=True)
    assert matches(_DEFAULT_OF_ALICE, {user: "alice", client_id: DEFAULT}, strict=True)
