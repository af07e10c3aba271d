"""Counts requests by method, route and status."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from agent.runtime.metrics import AgentMetrics


class RequestCounting:
    """ASGI middleware; a route is counted by its pattern, so that there are no more series than routes."""

    def __init__(self, app: ASGIApp, metrics: AgentMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, and count it when its answer begins."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.http_requests.labels(scope["method"], _route(scope), message["status"]).inc()
            await send(message)

        await self._app(scope, receive, counted)


def _route(scope: Scope) -> str:
    if "route" in scope:
        return str(getattr(scope["route"], "path", "none"))
    # A directory that is mounted has no route; what it is mounted at names it.
    return scope.get("root_path") or "none"
