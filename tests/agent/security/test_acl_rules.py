"""The index of ACLs decides as Kafka does; a slow model is the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.security import rights
from agent.security.acl_rules import AclIndex, Decision
from catalog.security.acl_bindings import (
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tests.agent.security import acl_model

if TYPE_CHECKING:
    from agent.security.rights import Right

_NAMES = ("a", "ab", "abc", "b", "*", "a*")
_PRINCIPALS = ("User:alice", "User:bob", "User:*", "Group:alice")
_HOSTS = ("10.0.0.1", "10.0.0.2", "*")
_RIGHTS = [each for some in rights.SUPPORTED_OPERATIONS.values() for each in some] + [
    rights.WRITE_TRANSACTION,
    rights.DESCRIBE_TRANSACTION,
]
_BINDINGS = st.builds(
    AclBinding,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(_NAMES),
    st.sampled_from(_PRINCIPALS),
    st.sampled_from(_HOSTS),
    st.sampled_from([each for each in Operation if each is not Operation.ANY]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)


@given(
    st.lists(_BINDINGS, max_size=12),
    st.sampled_from(_PRINCIPALS),
    st.sampled_from(_HOSTS[:2]),
    st.sampled_from(_RIGHTS),
    st.sampled_from(_NAMES),
    st.booleans(),
)
def test_decisions_are_those_of_the_model(
    bindings: list[AclBinding], principal: str, host: str, right: Right, name: str, by_default: bool
) -> None:
    index = AclIndex(None, bindings)
    decision = index.decide(principal, host, right, name)
    is_allowed = by_default if decision is Decision.NO_ACL else decision is Decision.ALLOWED
    assert is_allowed == acl_model.is_allowed(bindings, principal, host, right, name, by_default=by_default)
    assert index.allows_any(principal, host, right) == acl_model.allows_any(bindings, principal, host, right)


def acl(
    name: str = "orders",
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
    *,
    prefixed: bool = False,
    principal: str = "User:alice",
    host: str = "*",
) -> AclBinding:
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    return AclBinding(ResourceType.TOPIC, pattern, name, principal, host, operation, permission)


def is_allowed(right: Right, *bindings: AclBinding, name: str = "orders", host: str = "10.0.0.1") -> bool:
    return AclIndex(None, bindings).decide("User:alice", host, right, name) is Decision.ALLOWED


@pytest.mark.parametrize("operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_an_operation_implies_describe(operation: Operation) -> None:
    assert is_allowed(rights.DESCRIBE_TOPIC, acl(operation=operation))
    assert not is_allowed(rights.DESCRIBE_TOPIC_CONFIGS, acl(operation=operation))


def test_alter_configs_implies_describe_configs() -> None:
    assert is_allowed(rights.DESCRIBE_TOPIC_CONFIGS, acl(operation=Operation.ALTER_CONFIGS))
    assert not is_allowed(rights.DESCRIBE_TOPIC, acl(operation=Operation.ALTER_CONFIGS))


def test_a_denial_implies_no_other_denial() -> None:
    denied = acl(operation=Operation.READ, permission=Permission.DENY)
    assert is_allowed(rights.DESCRIBE_TOPIC, acl(operation=Operation.DESCRIBE), denied)
    assert not is_allowed(rights.READ_TOPIC, acl(operation=Operation.ALL), denied)


def test_a_denial_wins_over_every_other_pattern() -> None:
    denied = acl("ord", Operation.ALL, Permission.DENY, prefixed=True, principal="User:*")
    assert not is_allowed(rights.READ_TOPIC, acl(), acl("*", Operation.ALL), denied)


def test_a_host_is_compared_as_an_address() -> None:
    assert is_allowed(rights.READ_TOPIC, acl(host="0:0:0:0:0:0:0:1"), host="::1")
    denied = acl(host="::ffff:10.0.0.1", permission=Permission.DENY)
    assert not is_allowed(rights.READ_TOPIC, acl(), denied)


def test_a_literal_name_is_no_prefix_and_a_wildcard_prefix_is_no_wildcard() -> None:
    assert not is_allowed(rights.READ_TOPIC, acl("order"))
    assert not is_allowed(rights.READ_TOPIC, acl("*", prefixed=True))
    assert is_allowed(rights.READ_TOPIC, acl("*"))
