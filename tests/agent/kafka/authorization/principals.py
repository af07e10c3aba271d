"""A double of authentication: a connection's principal is the client id of its requests."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from agent.kafka.dispatcher import RequestDispatcher
from agent.security.identity import Principal
from catalog.security.acl_bindings import (
    CLUSTER_NAME,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

if TYPE_CHECKING:
    import pytest

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.codec import Cursor, Message
    from agent.security.identity import Client
    from tests.agent.kafka.brokers import BrokerThread

_OPERATIONS = {each.name.title().replace("_", ""): each for each in Operation}
_TYPES = {each.name.title().replace("_", ""): each for each in ResourceType}
principal_of = cache(lambda name: Principal("User", name))


def authenticate_by_client_id(patch: pytest.MonkeyPatch) -> None:
    """Let each request set the principal of its connection."""
    original = RequestDispatcher._context

    def context(
        dispatcher: RequestDispatcher,
        cursor: Cursor,
        message: Message,
        version: int,
        client: Client,
        arrived_at: float,
    ) -> RequestContext:
        found = original(dispatcher, cursor, message, version, client, arrived_at)
        if found.client_id is not None:
            client.principal = principal_of(found.client_id)
        return found

    patch.setattr(RequestDispatcher, "_context", context)


def allow(principal: str, *rights: str, permission: Permission = Permission.ALLOW) -> list[AclBinding]:
    """Return ACLs for rights such as `Read Topic t`, `Describe Group g*` (a prefix) and `Alter Cluster`."""
    found = []
    for right in rights:
        operation, kind, *names = right.split()
        name = names[0] if names else CLUSTER_NAME
        is_prefix = name != "*" and name.endswith("*")
        found.append(
            AclBinding(
                _TYPES[kind],
                PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
                name.removesuffix("*") if is_prefix else name,
                f"User:{principal}",
                "*",
                _OPERATIONS[operation],
                permission,
            )
        )
    return found


def refresh(broker: BrokerThread) -> None:
    """Let the agent load the ACLs now."""
    follower = broker.agent.access.acl_follower
    assert follower is not None
    broker.run(follower.refresh())
