"""The HTTP API: thin routes over the write path, the read path and the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

from agent.http import documentation, errors, operation_routes, record_routes, topic_routes
from agent.http.request_counting import RequestCounting

if TYPE_CHECKING:
    from agent.http.services import HttpServices

_DESCRIPTION = """\
A Kafka-compatible log whose durable home is an object store.

Keys, values and header values are JSON strings where their bytes are UTF-8; where they are not, they are
base64 and a sibling field such as `key_encoding` says so. Errors have one form:
`{"error": {"code", "message", "remedy"}}`.
"""


def create_app(services: HttpServices) -> FastAPI:
    """The application over `services`."""
    app = FastAPI(
        title="Siltstone",
        description=_DESCRIPTION,
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.include_router(topic_routes.router(services))
    app.include_router(record_routes.router(services))
    app.include_router(operation_routes.router(services))
    documentation.install(app)
    errors.install(app, services.ids)
    app.add_middleware(RequestCounting, metrics=services.metrics)
    return app
