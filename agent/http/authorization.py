"""Authorization of HTTP requests: the same authorizer and the same rights as for Kafka clients.

A refusal is 403, whether the topic exists or not. Authentication puts the client into the state of a request,
as `client`. A request without one is from `User:ANONYMOUS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.http.errors import NotAuthorizedError
from agent.security.identity import Client
from catalog.security.acl_bindings import CLUSTER_NAME

if TYPE_CHECKING:
    from starlette.requests import Request

    from agent.security.authorizer import Authorizer
    from agent.security.rights import Right


def client_of(request: Request) -> Client:
    """Return the client of a request."""
    client: Client | None = getattr(request.state, "client", None)
    if client is None:
        client = Client("" if request.client is None else request.client.host, "HTTP")
        request.state.client = client
    return client


class Access:
    """Rights of the client of one request. Without an authorizer, it may do everything."""

    def __init__(self, authorizer: Authorizer | None, request: Request) -> None:
        self._authorizer = authorizer
        self._client = client_of(request)

    def allows(self, right: Right, name: str = CLUSTER_NAME, *, log_denied: bool = True) -> bool:
        """Return True if the client may do an operation on one resource, by default on the cluster."""
        authorizer = self._authorizer
        return authorizer is None or authorizer.allows(self._client, right, name, log_denied=log_denied)

    def lists(self, right: Right, name: str) -> bool:
        """Return True if a list may contain a resource. This is neither logged nor cached."""
        return self._authorizer is None or self._authorizer.decide(self._client, right, name)

    def require(self, right: Right, name: str = CLUSTER_NAME, *, or_cluster: Right | None = None) -> None:
        """Raise `NotAuthorizedError` unless the client has the right, or `or_cluster` on the cluster."""
        if or_cluster is not None and self.allows(or_cluster, log_denied=False):
            return
        if not self.allows(right, name):
            operation, kind = right.operation.name.lower(), right.resource_type.name.lower()
            raise NotAuthorizedError(
                f"the principal may not {operation} this {kind}",
                remedy="ask an operator for an ACL, or authenticate as another user",
            )
