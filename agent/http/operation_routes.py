"""`/healthz` and `/metrics`: for those who run agents."""

from typing import TYPE_CHECKING

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

if TYPE_CHECKING:
    from agent.http.context import HttpContext


def router(context: "HttpContext") -> APIRouter:
    """The routes of operation."""
    routes = APIRouter(tags=["operation"])

    @routes.get("/healthz")
    async def health() -> Response:
        """200 while all is well; 503 with the reasons while something is not, or the agent is stopping."""
        problems = context.problems()
        body = {"status": "unwell" if problems else "ok", "problems": dict(problems)}
        return JSONResponse(body, status_code=503 if problems else 200)

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Everything that is counted, in Prometheus' text format."""
        return Response(context.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return routes
