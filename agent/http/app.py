"""The HTTP API: thin routes over the write path, the read path and the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

from agent.http import documentation, errors, operation_routes, record_routes, topic_routes

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from agent.http.context import HttpContext
    from agent.runtime.metrics import AgentMetrics

_DESCRIPTION = """\
A Kafka-compatible log whose durable home is an object store.

Keys, values and header values are JSON strings where their bytes are UTF-8; where they are not, they are
base64 and a sibling field such as `key_encoding` says so. Errors have one form:
`{"error": {"code", "message", "remedy"}}`.
"""


def create_app(context: HttpContext) -> FastAPI:
    """The application over `context`."""
    app = FastAPI(
        title="Siltstone",
        description=_DESCRIPTION,
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.include_router(topic_routes.router(context))
    app.include_router(record_routes.router(context))
    app.include_router(operation_routes.router(context))
    documentation.install(app)
    errors.install(app, context.ids)
    app.add_middleware(RequestCounting, metrics=context.metrics)
    return app


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
