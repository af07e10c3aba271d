"""`/docs` and `/openapi.json`. The agent serves all parts of the page: it works without the internet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.responses import JSONResponse
from starlette.staticfiles import StaticFiles
from swagger_ui_bundle import swagger_ui_path

from agent.http.models import PRODUCE_BODY, CreateTopicBody, ErrorResponse

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

# The bundled Swagger UI supports OpenAPI 3.0, not 3.1.
_OPENAPI_VERSION = "3.0.3"
_ASSETS = "/docs/assets"
_REFERENCE = "#/components/schemas/{model}"
# FastAPI does not know the bodies that routes read and validate themselves, off the event loop.
_REQUEST_BODIES: dict[str, TypeAdapter[Any]] = {
    "CreateTopicBody": TypeAdapter(CreateTopicBody),
    "ProduceBody": PRODUCE_BODY,
}
_ERROR = TypeAdapter(ErrorResponse)

_ERRORS = {
    403: "The principal of the request may not do this.",
    404: "The topic or the partition does not exist.",
    408: "The request body did not arrive in time.",
    409: "A topic with this name exists.",
    413: "The request body is too large.",
    415: "The request body is not uncompressed JSON.",
    416: "The offset is out of range. The error has the bounds of the partition.",
    422: "A parameter or the request body is invalid.",
    429: "The user exceeds its quota. Retry after `Retry-After` seconds.",
    503: "Retry after `Retry-After` seconds.",
}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of a route's error responses.

    It refers to the model by name: FastAPI would compile a model again for each status of each route.
    """
    return {
        status: {"description": _ERRORS[status], "content": _content("ErrorResponse")} for status in statuses
    }


def describes_body(name: str) -> dict[str, Any]:
    """Return the OpenAPI description of a route whose request body is the model `name`."""
    assert name in _REQUEST_BODIES
    return {"requestBody": {"required": True, "content": _content(name)}}


def _content(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(model=name)}}}


def install(app: FastAPI) -> None:
    """Add `/docs` and `/openapi.json` to the application."""
    app.openapi = lambda: _schema(app)  # type: ignore[method-assign]  # as FastAPI documents it
    app.mount(_ASSETS, StaticFiles(directory=swagger_ui_path), name="docs-assets")

    def openapi(request: Request) -> Response:
        del request
        return JSONResponse(app.openapi())

    def docs(request: Request) -> Response:
        del request
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=app.title,
            swagger_js_url=f"{_ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{_ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{_ASSETS}/favicon-32x32.png",
        )

    app.add_route("/openapi.json", openapi, include_in_schema=False)
    app.add_route("/docs", docs, include_in_schema=False)


def _schema(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            openapi_version=_OPENAPI_VERSION,
        )
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        for name, body in _REQUEST_BODIES.items():
            described = body.json_schema(ref_template=_REFERENCE)
            schemas.update(described.pop("$defs", {}))
            schemas[name] = described
        described = _ERROR.json_schema(ref_template=_REFERENCE, mode="serialization")
        schemas.update(described.pop("$defs", {}))
        schemas["ErrorResponse"] = described
        app.openapi_schema = _nullable(schema)
    return app.openapi_schema


def _nullable(node: Any) -> Any:  # noqa: ANN401  # any JSON
    """Convert from OpenAPI 3.1, where "or null" is another type, to 3.0, where it is a flag of the type.

    Defaults of null are left out, as FastAPI does.
    """
    if isinstance(node, list):
        return [_nullable(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _nullable(value) for key, value in node.items() if (key, value) != ("default", None)}
    choices = node.get("anyOf")
    if isinstance(choices, list) and {"type": "null"} in choices:
        others = [choice for choice in choices if choice != {"type": "null"}]
        del node["anyOf"]
        node.update(others[0] if len(others) == 1 else {"anyOf": others})
        node["nullable"] = True
    if "const" in node:
        node["enum"] = [node.pop("const")]
    return node
