"""Routes for operators: `/healthz` and `/metrics`."""

from typing import TYPE_CHECKING

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

if TYPE_CHECKING:
    from agent.http.context import HttpContext


def router(context: "HttpContext") -> APIRouter:
    """Return the routes for operators."""
    routes = APIRouter(tags=["operation"])

    @routes.get("/healthz")
    async def health() -> Response:
        """Return 200 if the agent is healthy. Return 503 and the reasons if it is unhealthy or stopping."""
        problems = context.problems()
        body = {"status": "unhealthy" if problems else "ok", "problems": dict(problems)}
        return JSONResponse(body, status_code=503 if problems else 200)

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Return all metrics in the text format of Prometheus."""
        return Response(context.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return routes
