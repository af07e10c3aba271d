"""Stored ACLs: changes, filters, and notifications of watchers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from catalog.errors import InvalidAclError
from catalog.security import acls
from catalog.security.acl_bindings import (
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    canonical_host,
)
from catalog.security.acls import ACL_CHANNEL

if TYPE_CHECKING:
    from catalog.open import Catalog

_READ = AclBinding(
    ResourceType.TOPIC,
    PatternType.LITERAL,
    "orders",
    "User:CN=a,O=b:c",
    "*",
    Operation.READ,
    Permission.ALLOW,
)
_PREFIX = _READ._replace(pattern_type=PatternType.PREFIXED, resource_name="or")
_WILDCARD = _READ._replace(resource_name="*", operation=Operation.ALL)
_DENY = _READ._replace(resource_type=ResourceType.GROUP, permission=Permission.DENY, host="10.0.0.1")
_ALL = [_READ, _PREFIX, _WILDCARD, _DENY]


def stored(catalog: Catalog) -> set[AclBinding]:
    found = catalog.acls.load()
    assert found is not None
    return set(found.bindings)


def test_a_change_gives_the_acls_a_new_version(catalog: Catalog) -> None:
    empty = catalog.acls.load()
    assert empty is not None
    assert empty.bindings == []
    assert catalog.acls.load(empty.version) is None
    assert catalog.acls.add([_READ, _READ, _PREFIX]) == 2
    first = catalog.acls.load(empty.version)
    assert first is not None
    assert set(first.bindings) == {_READ, _PREFIX}
    assert catalog.acls.add([_READ]) == 0
    assert catalog.acls.load(first.version) is None
    assert catalog.acls.remove([AclFilter()]) == [[*first.bindings]]
    assert catalog.acls.load(first.version) is not None
    assert stored(catalog) == set()


@pytest.mark.parametrize(
    ("wanted", "selected"),
    [
        (AclFilter(), _ALL),
        (AclFilter(ResourceType.GROUP), [_DENY]),
        (AclFilter(resource_name="orders"), [_READ, _DENY]),
        (AclFilter(ResourceType.TOPIC, PatternType.MATCH, "orders"), [_READ, _PREFIX, _WILDCARD]),
        (AclFilter(ResourceType.TOPIC, PatternType.PREFIXED, "or"), [_PREFIX]),
        (AclFilter(pattern_type=PatternType.PREFIXED, resource_name="orders"), []),
        (AclFilter(principal="User:CN=a,O=b:c", operation=Operation.READ), [_READ, _PREFIX, _DENY]),
        (AclFilter(host="10.0.0.1"), [_DENY]),
        (AclFilter(permission=Permission.DENY), [_DENY]),
        (AclFilter(operation=Operation.ALL), [_WILDCARD]),
        (AclFilter(principal="User:x"), []),
    ],
)
def test_a_filter_selects_as_in_kafka(wanted: AclFilter, selected: list[AclBinding]) -> None:
    assert [each for each in _ALL if wanted.matches(each)] == selected


def test_each_filter_of_a_removal_lists_what_it_selects(catalog: Catalog) -> None:
    catalog.acls.add(_ALL)
    of_topics, none, of_all = catalog.acls.remove(
        [AclFilter(ResourceType.TOPIC), AclFilter(principal="User:x"), AclFilter()]
    )
    assert (set(of_topics), none, set(of_all)) == ({_READ, _PREFIX, _WILDCARD}, [], {*_ALL})
    assert stored(catalog) == set()


@pytest.mark.parametrize(
    "changes",
    [
        {"resource_type": ResourceType.DELEGATION_TOKEN},
        {"resource_type": ResourceType.USER},
        {"resource_type": ResourceType.ANY},
        {"resource_type": ResourceType.CLUSTER},
        {"pattern_type": PatternType.MATCH},
        {"operation": Operation.ANY},
        {"permission": Permission.ANY},
        {"resource_name": ""},
        {"resource_name": "a\0b"},
        {"resource_name": "a" * 2501},
        {"principal": "alice"},
        {"principal": "User:"},
        {"host": "example.org"},
        {"host": ""},
    ],
)
def test_an_invalid_acl_is_refused_with_the_whole_change(
    catalog: Catalog,
    changes: dict[str, Any],
) -> None:
    with pytest.raises(InvalidAclError):
        catalog.acls.add([_PREFIX, _READ._replace(**changes)])
    assert stored(catalog) == set()


def test_the_number_of_acls_is_bounded(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "MAX_ACLS", 3)
    catalog.acls.add(_ALL[:3])
    with pytest.raises(InvalidAclError, match="more than 3"):
        catalog.acls.add(_ALL)
    assert stored(catalog) == {*_ALL[:3]}


def test_the_largest_acl_can_be_stored(catalog: Catalog) -> None:
    large = _READ._replace(resource_name="é" * 1250, principal="User:" + "a" * 1019)
    catalog.acls.add([large])
    assert stored(catalog) == {large}


def test_concurrent_changes_are_all_kept(catalog: Catalog) -> None:
    bindings = [_READ._replace(resource_name=f"t{number}") for number in range(8)]
    threads = [threading.Thread(target=catalog.acls.add, args=([each],)) for each in bindings]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert stored(catalog) == {*bindings}


def test_a_watcher_without_buckets_is_notified_of_a_change(catalog: Catalog) -> None:
    calls: list[str] = []
    watcher = catalog.watcher(listeners={ACL_CHANNEL: lambda: calls.append("changed")})
    try:
        watcher.wait(0.01, frozenset())
        assert calls == ["changed"]  # it may have missed something before it listened
        catalog.acls.add([_READ])
        while len(calls) < 2:
            assert not watcher.wait(60.0, frozenset())
        catalog.acls.add([_READ])
        assert not watcher.wait(0.05, frozenset())
        assert len(calls) == 2
    finally:
        watcher.close()


@pytest.mark.parametrize(
    ("host", "canonical"),
    [
        ("*", "*"),
        ("10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("example.org", None),
    ],
)
def test_a_host_has_one_form(host: str, canonical: str | None) -> None:
    assert canonical_host(host) == canonical
