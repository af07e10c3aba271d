"""Routes for operators: health and metrics."""

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from agent.http.authorization import Access
from agent.http.documentation import error_responses
from agent.http.models import HealthResponse
from agent.security.rights import DESCRIBE_CLUSTER
from agent.supervision.health_listener import respond

if TYPE_CHECKING:
    from agent.http.context import HttpContext


def router(context: "HttpContext") -> APIRouter:
    """Return the routes for operators."""
    routes = APIRouter(tags=["operation"])

    @routes.get(
        "/livez",
        response_model=HealthResponse,
        response_description="The process makes progress.",
        responses={503: {"model": HealthResponse, "description": "The process must be restarted."}},
    )
    async def live() -> Response:
        """Return 200 if the event loop and every essential background task run.

        Otherwise return 503 and the reasons: restart the process. It does not depend on the catalog, the
        object store or disks. No response within a second means the same as 503.
        """
        return _response(context, "/livez")

    @routes.get(
        "/readyz",
        response_model=HealthResponse,
        response_description="The agent can serve requests.",
        responses={503: {"model": HealthResponse, "description": "The agent cannot serve, or is stopping."}},
    )
    async def ready() -> Response:
        """Return 200 if the agent is live and its catalog, object store, disks and session work.

        Otherwise return 503 and the reasons: send requests to another agent. The result changes at most five
        seconds after a fault or its end.
        """
        return _response(context, "/readyz")

    @routes.get(
        "/healthz",
        response_model=HealthResponse,
        response_description="The agent can serve requests.",
        responses={503: {"model": HealthResponse, "description": "The agent cannot serve, or is stopping."}},
    )
    async def health() -> Response:
        """Do the same as `/readyz`, for load balancers that expect this name."""
        return _response(context, "/healthz")

    @routes.get(
        "/metrics",
        response_class=PlainTextResponse,
        response_description="The metrics.",
        responses=error_responses(403),
    )
    async def metrics(request: Request) -> Response:
        """Return all metrics in the text format of Prometheus, to clients that may describe the cluster."""
        Access(context.authorizer, request).require(DESCRIBE_CLUSTER)
        return Response(context.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return routes


def _response(context: "HttpContext", path: str) -> Response:
    """Return the health from state that was read: the routes call nothing that could hang."""
    status, body = respond(context.health, path)
    return Response(body, status_code=status, media_type="application/json")
