"""Authorization of Kafka requests: the checks of handlers, and the error codes of refusals.

Without an authorizer, every client may do everything.

Handlers check names before they look anything up, or replace the outcome of the lookup, so that a response
never tells whether a resource exists that the client may not describe. A refusal concerns one resource of a
request, never the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.kafka.errors import ErrorCode, KafkaError
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security import rights
from catalog.security.acl_bindings import CLUSTER_NAME, ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.kafka.api_definition import RequestContext
    from agent.security.acl_rules import AclIndex
    from agent.security.rights import Right

NOT_REQUESTED: Final = -(2**31)
"""The bit field of operations for a client that did not ask for it."""

_ALL_OPERATIONS: Final = {
    kind: sum(1 << each.operation for each in supported)
    for kind, supported in rights.SUPPORTED_OPERATIONS.items()
}
_CODES: Final = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}


def is_allowed(
    context: RequestContext, right: Right, name: str = CLUSTER_NAME, *, log_denied: bool = True
) -> bool:
    """Return True if the client may do an operation on one resource, by default on the cluster."""
    authorizer = context.services.authorizer
    return authorizer is None or authorizer.allows(context.client, right, name, log_denied=log_denied)


def current_acls(context: RequestContext) -> AclIndex | None:
    """Return the ACLs that decide now. A request that waits must check its rights again if they change."""
    authorizer = context.services.authorizer
    return None if authorizer is None else authorizer.index


def cached_decisions(context: RequestContext, right: Right) -> dict[str, bool] | None:
    """Return the decisions on names that the client's connection has cached; None if it has all rights.

    This is for a fast path. `is_allowed` decides on a name that is missing or refused.
    """
    authorizer = context.services.authorizer
    return None if authorizer is None else authorizer.cached(context.client, right)


def name_check(context: RequestContext, right: Right) -> Callable[[str], bool] | None:
    """Return a function that tells whether the client has a right on a name; None if it has all.

    It costs one lookup in a dictionary for each name that was decided before. It does not log a refusal: the
    caller leaves the request to a handler that does.
    """
    authorizer, client = context.services.authorizer, context.client
    if authorizer is None:
        return None
    known = authorizer.cached(client, right)
    allows = authorizer.allows
    return lambda name: known.get(name) or allows(client, right, name, log_denied=False)


def is_allowed_quietly(context: RequestContext, right: Right, name: str) -> bool:
    """Return True if a list may contain a resource. This is neither logged nor cached."""
    authorizer = context.services.authorizer
    return authorizer is None or authorizer.decide(context.client, right, name)


def is_allowed_on_any(context: RequestContext, right: Right) -> bool:
    """Return True if the client may do an operation on any resource of the type."""
    authorizer = context.services.authorizer
    return authorizer is None or authorizer.allows_any(context.client, right)


def require(context: RequestContext, right: Right, name: str = CLUSTER_NAME) -> None:
    """Raise the error of a refusal unless the client may do an operation on one resource."""
    if not is_allowed(context, right, name):
        raise refusal(right)


def require_again(context: RequestContext, acls: AclIndex | None, right: Right, name: str) -> None:
    """Raise the error of a refusal if other ACLs than `acls` decide now, and they do not allow the operation.

    This is for a request that has waited.
    """
    if current_acls(context) is not acls:
        require(context, right, name)


def refusal(right: Right) -> KafkaError:
    """Return the error for a client without this right."""
    return KafkaError(
        _CODES[right.resource_type],
        f"the principal may not {right.operation.name.lower()} this {right.resource_type.name.lower()}",
    )


async def refused_names(
    context: RequestContext, right: Right, names: Iterable[str], *, log_denied: bool = True
) -> frozenset[str]:
    """Return the names on which the client may not do the operation."""
    if context.services.authorizer is None:
        return frozenset()
    yielding, refused = CooperativeYield(), []
    for name in dict.fromkeys(names):
        if not is_allowed(context, right, name, log_denied=log_denied):
            refused.append(name)
        await yielding.step()
    return frozenset(refused)


async def listed_names(context: RequestContext, right: Right, names: Iterable[str]) -> frozenset[str] | None:
    """Return the names that a list of all resources may contain; None for all of them."""
    if context.services.authorizer is None:
        return None
    yielding, allowed = CooperativeYield(), []
    for name in names:
        if is_allowed_quietly(context, right, name):
            allowed.append(name)
        await yielding.step()
    return frozenset(allowed)


def authorized_operations(
    context: RequestContext, kind: ResourceType, name: str = CLUSTER_NAME, *, requested: object
) -> int:
    """Return the bit field of the client's operations on a resource if it was requested (KIP-430)."""
    if not requested:
        return NOT_REQUESTED
    authorizer = context.services.authorizer
    return _ALL_OPERATIONS[kind] if authorizer is None else authorizer.operations(context.client, kind, name)


def cluster_operations(context: RequestContext, *, requested: object) -> int:
    """Return the operations on the cluster; none for a client that may not describe it."""
    if requested and not is_allowed(context, rights.DESCRIBE_CLUSTER):
        return 0
    return authorized_operations(context, ResourceType.CLUSTER, requested=requested)
