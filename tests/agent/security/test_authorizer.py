"""The authorizer: super users, the default, cached decisions and the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from structlog.testing import capture_logs

from agent.security import rights
from agent.security.acl_rules import AclIndex
from agent.security.audit import AuditLog
from agent.security.authorizer import Authorizer, parse_super_users
from agent.security.identity import Client, Principal
from catalog.security.acl_bindings import (
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from core.clock import ManualClock
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from agent.security.rights import Right

_ALICE = Principal("User", "alice")
_READ_A = AclBinding(
    ResourceType.TOPIC,
    PatternType.LITERAL,
    "a",
    "User:alice",
    "*",
    Operation.READ,
    Permission.ALLOW,
)


class Scene:
    """An authorizer with a manual clock, and what its audit log counts."""

    def __init__(self, *, lines: int = 100, logs_allowed: bool = False, **settings: Any) -> None:  # noqa: ANN401  # any setting
        self.clock = ManualClock()
        self.registry = CollectorRegistry()
        self.denied = Counter("denied", "-", ["type", "operation"], registry=self.registry)
        self.suppressed = Counter("suppressed", "-", registry=self.registry)
        self.audit = AuditLog(
            self.clock,
            lines_per_second=lines,
            denied=self.denied,
            suppressed=self.suppressed,
            logs_allowed=logs_allowed,
        )
        self.authorizer = Authorizer(
            **{"super_users": "", "allow_everyone": False, **settings}, audit=self.audit
        )
        self.client = Client("10.0.0.1", "SASL", _ALICE)

    def allows(self, right: Right, name: str) -> bool:
        return self.authorizer.allows(self.client, right, name)


def test_super_users_are_separated_by_semicolons_and_may_contain_commas() -> None:
    found = parse_super_users(" User:admin ;User:CN=a,OU=b;;Group:x:y")
    assert found == {"User:admin", "User:CN=a,OU=b", "Group:x:y"}
    with pytest.raises(InvalidInputError, match="not a principal"):
        parse_super_users("admin")


def test_a_super_user_may_do_what_is_denied() -> None:
    scene = Scene(super_users="User:alice")
    denied = _READ_A._replace(operation=Operation.ALL, permission=Permission.DENY)
    scene.authorizer.replace(AclIndex(None, [denied]))
    assert scene.allows(rights.READ_TOPIC, "a")
    assert scene.authorizer.allows_any(scene.client, rights.WRITE_TOPIC)


def test_the_default_is_for_resources_without_any_acl() -> None:
    scene = Scene(allow_everyone=True)
    scene.authorizer.replace(AclIndex(None, [_READ_A._replace(principal="User:bob")]))
    assert scene.allows(rights.READ_TOPIC, "b")
    assert not scene.allows(rights.READ_TOPIC, "a")


def test_another_version_of_the_acls_ends_cached_decisions() -> None:
    scene = Scene()
    scene.authorizer.replace(AclIndex(None, [_READ_A]))
    assert scene.allows(rights.READ_TOPIC, "a")
    scene.authorizer.replace(AclIndex(None, []))
    assert not scene.allows(rights.READ_TOPIC, "a")


def test_another_principal_of_the_connection_ends_cached_decisions() -> None:
    scene = Scene()
    scene.authorizer.replace(AclIndex(None, [_READ_A]))
    assert scene.allows(rights.READ_TOPIC, "a")
    scene.client.principal = Principal("User", "bob")
    assert not scene.allows(rights.READ_TOPIC, "a")


def test_cached_decisions_of_all_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.security.authorizer.MAX_CACHED_BYTES", 10_000)
    scene = Scene(lines=0)
    clients = [Client("10.0.0.1", "SASL", _ALICE) for _ in range(10)]
    for number in range(1000):
        scene.authorizer.allows(clients[number % 10], rights.READ_TOPIC, f"topic-{number}")
    assert sum(len(scene.authorizer.cached(each, rights.READ_TOPIC)) for each in clients) <= 50
    for number in range(100):
        scene.authorizer.allows(clients[0], rights.READ_TOPIC, f"{number:02}" + "\N{GRINNING FACE}" * 500)
    assert len(scene.authorizer.cached(clients[0], rights.READ_TOPIC)) <= 5, "names count with their bytes"


def test_denied_operations_are_logged_with_principal_resource_and_client() -> None:
    scene = Scene()
    scene.authorizer.replace(AclIndex(None, [_READ_A]))
    with capture_logs() as lines:
        scene.allows(rights.READ_TOPIC, "a")
        scene.allows(rights.WRITE_TOPIC, "a")
        scene.authorizer.decide(scene.client, rights.WRITE_TOPIC, "a")
    (line,) = lines
    assert line == {
        "event": "authorization",
        "log_level": "info",
        "decision": "denied",
        "principal": "User:alice",
        "operation": "write",
        "resource_type": "topic",
        "resource": "a",
        "host": "10.0.0.1",
        "listener": "SASL",
    }
    assert scene.denied.labels("topic", "write")._value.get() == 1


def test_allowed_operations_are_logged_at_debug_each_time() -> None:
    scene = Scene(logs_allowed=True)
    scene.authorizer.replace(AclIndex(None, [_READ_A]))
    with capture_logs() as lines:
        for _ in range(3):
            scene.allows(rights.READ_TOPIC, "a")
    assert [(each["log_level"], each["decision"]) for each in lines] == [("debug", "allowed")] * 3
    assert not scene.authorizer.cached(scene.client, rights.READ_TOPIC)


def test_lines_beyond_the_rate_are_counted_and_reported() -> None:
    scene = Scene(lines=2)
    with capture_logs() as lines:
        for number in range(5):
            scene.allows(rights.READ_TOPIC, f"t{number}")
        scene.clock.advance(2)
        scene.audit.report_suppressed()
    assert [each["event"] for each in lines] == ["authorization"] * 2 + ["authorizations not logged"]
    assert lines[-1]["suppressed"] == 3
    assert scene.suppressed._value.get() == 3
