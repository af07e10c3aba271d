"""The HTTP API of an agent: thin routes over the write path, the read path and the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

from agent.http import documentation, errors, operation_routes, record_routes, topic_routes
from agent.http.browser_check import BrowserCheck
from agent.http.relative_redirects import RelativeRedirects

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from agent.http.context import HttpContext
    from agent.runtime.metrics import AgentMetrics

_DESCRIPTION = """\
A Kafka-compatible log on an object store.

Keys, values and header values are JSON strings if their bytes are UTF-8. Otherwise they are base64, and a
second field such as `key_encoding` says so. All errors have one form:
`{"error": {"code", "message", "remedy"}}`.
"""


def create_app(context: HttpContext) -> FastAPI:
    """Return the application that serves all routes."""
    app = FastAPI(
        title="Siltstone",
        description=_DESCRIPTION,
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # `include_router` would build each of them twice.
        routes=[
            *topic_routes.router(context).routes,
            *record_routes.router(context).routes,
            *operation_routes.router(context).routes,
        ],
    )
    documentation.install(app)
    errors.install(app, context.ids)
    app.add_middleware(RelativeRedirects)
    app.add_middleware(BrowserCheck, allowed_hosts=context.settings.http_allowed_hosts)
    app.add_middleware(RequestCounter, metrics=context.metrics)
    return app


class RequestCounter:
    """ASGI middleware that counts requests by method, route pattern and status.

    A pattern instead of a path bounds the number of time series by the number of routes.
    """

    def __init__(self, app: ASGIApp, metrics: AgentMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, and count it when its response starts."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.http_requests.labels(scope["method"], _route(scope), message["status"]).inc()
            await send(message)

        await self._app(scope, receive, count)


def _route(scope: Scope) -> str:
    if "route" in scope:
        return str(getattr(scope["route"], "path", "none"))
    # Mounted static files have no route, only the path of their mount.
    return scope.get("root_path") or "none"
