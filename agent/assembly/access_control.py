"""Access control of an agent: authentication, ACLs, and the quotas of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.quotas.follower import QuotaFollower
from agent.security.acl_follower import AclFollower
from agent.security.audit import AuditLog
from agent.security.authentication import Authentication
from agent.security.authorizer import Authorizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.assembly.resources import Resources


class AccessControl:
    """Security of one agent. There is no follower of ACLs if every client may do everything."""

    authentication: Authentication

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self.acl_follower = _follow_acls(resources) if resources.settings.authorizer_enable else None
        self.quotas = QuotaFollower.of_agent(
            resources.settings,
            resources.catalog.client_quotas,
            pool=resources.pools.catalog,
            clock=resources.clock,
            outage=resources.outage("client quotas"),
            metrics=resources.metrics,
        )

    @property
    def authorizer(self) -> Authorizer | None:
        """The authorizer; None if every client may do everything."""
        return None if self.acl_follower is None else self.acl_follower.authorizer

    def create_authentication(self) -> None:
        """Verify clients from now on; InvalidInputError if the settings do not suffice."""
        resources = self._resources
        self.authentication = Authentication(
            resources.settings,
            users=resources.catalog.users,
            pools=resources.pools,
            metrics=resources.metrics,
            clock=resources.clock,
            ids=resources.ids,
        )

    async def follow_acls(self) -> None:
        """Load the ACLs and keep them current."""
        if self.acl_follower is not None:
            await self.acl_follower.start()

    def running(self) -> dict[str, Callable[[], bool]]:
        """Return the essential parts, and whether they run."""
        parts: dict[str, Callable[[], bool]] = {"quotas": lambda: self.quotas.is_running}
        if (follower := self.acl_follower) is not None:
            parts["acls"] = lambda: follower.is_running
        return parts

    async def stop(self) -> None:
        """Stop following the ACLs."""
        if self.acl_follower is not None:
            await self.acl_follower.stop()


def _follow_acls(resources: Resources) -> AclFollower:
    settings, metrics = resources.settings, resources.metrics
    audit = AuditLog(
        resources.clock,
        lines_per_second=settings.audit_log_lines_per_second,
        denied=metrics.authorizations_denied,
        suppressed=metrics.audit_lines_suppressed,
    )
    authorizer = Authorizer(
        super_users=settings.super_users,
        allow_everyone=settings.allow_everyone_if_no_acl_found,
        audit=audit,
    )
    follower = AclFollower(
        resources.catalog.acls,
        authorizer,
        clock=resources.clock,
        outage=resources.outage("comparison of the ACLs with the catalog"),
        poll_seconds=settings.acl_poll_ms / 1000,
    )
    metrics.expose(follower.collector())
    return follower
