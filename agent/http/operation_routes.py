"""Routes for operators: `/healthz` and `/metrics`."""

from typing import TYPE_CHECKING

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, PlainTextResponse, Response

from agent.http.models import HealthResponse

if TYPE_CHECKING:
    from agent.http.context import HttpContext


def router(context: "HttpContext") -> APIRouter:
    """Return the routes for operators."""
    routes = APIRouter(tags=["operation"])

    @routes.get(
        "/healthz",
        response_model=HealthResponse,
        response_description="The agent is healthy.",
        responses={503: {"model": HealthResponse, "description": "The agent is unhealthy or stopping."}},
    )
    async def health() -> Response:
        """Return 200 if the agent is healthy. Return 503 and the reasons if it is unhealthy or stopping."""
        problems = context.problems()
        body = {"status": "unhealthy" if problems else "ok", "problems": dict(problems)}
        return JSONResponse(body, status_code=503 if problems else 200)

    @routes.get("/metrics", response_class=PlainTextResponse, response_description="The metrics.")
    async def metrics() -> Response:
        """Return all metrics in the text format of Prometheus."""
        return Response(context.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return routes
