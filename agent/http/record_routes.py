"""`…/records`: producing and reading."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from agent.http.context import HttpContext
from agent.http.documentation import describes_body
from agent.http.models import ErrorAnswer, ProduceAnswer, RecordsAnswer
from agent.http.produce_body import parse_records, render_results
from agent.http.record_rendering import PendingResponse, RecordsRendering
from agent.http.request_body import json_body
from agent.read.fetch_plan import PartitionFetch

_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1

Partition = Annotated[int, Path(ge=0, le=_INT32_MAX)]
Offset = Annotated[
    int | None,
    Query(ge=0, le=_INT64_MAX, description="Where to begin; left out: the log start offset."),
]
Timestamp = Annotated[
    int | None,
    Query(
        ge=0,
        le=_INT64_MAX,
        description="Begin with the first offset at or after this time (milliseconds) instead; "
        "the high watermark when there is none.",
    ),
]


def router(context: HttpContext) -> APIRouter:
    """The routes of records."""
    routes = APIRouter(prefix="/v1/topics/{topic}", tags=["records"])
    settings = context.settings

    async def produce(request: Request, topic: str, partition: int | None) -> Response:
        kernels = context.pools.kernels
        async with json_body(
            request,
            limit=settings.max_request_bytes,
            budget=context.request_budget,
            seconds=settings.body_timeout_ms / 1000,
        ) as body:
            found = await context.directory.get(topic)
            records = await kernels.run(partial(parse_records, body))
            produced = await context.producer.produce(found, records, partition)
        answer = await kernels.run(partial(render_results, produced))
        status = 422 if produced.refusals and not produced.accepted else 200
        return Response(answer, status_code=status, media_type="application/json")

    @routes.post("/records", openapi_extra=describes_body("ProduceBody"), responses=_PRODUCE_RESPONSES)
    async def produce_to_topic(topic: str, request: Request) -> Response:
        """Append records, placed by their key; answered once they are durable and have their offsets.

        Records are refused one by one (200, with an `error` in their place); 422 when all are.
        """
        return await produce(request, topic, None)

    @routes.post(
        "/partitions/{partition}/records",
        openapi_extra=describes_body("ProduceBody"),
        responses=_PRODUCE_RESPONSES,
    )
    async def produce_to_partition(topic: str, partition: Partition, request: Request) -> Response:
        """Append records to one partition, whatever their keys."""
        return await produce(request, topic, partition)

    @routes.get("/partitions/{partition}/records", responses=_READ_RESPONSES)
    async def read_records(
        topic: str,
        partition: Partition,
        offset: Offset = None,
        timestamp: Timestamp = None,
        max_records: Annotated[int, Query(ge=1, le=settings.max_max_records)] = settings.default_max_records,
        max_bytes: Annotated[int, Query(ge=1, le=settings.max_fetch_bytes)] = settings.default_fetch_bytes,
        max_wait_ms: Annotated[
            int,
            Query(ge=0, le=settings.max_wait_ms, description="How long to wait at the tail for a record."),
        ] = 0,
    ) -> Response:
        """Records from one partition, at least one if there is any; go on at `next_offset`.

        An offset that has no record any more is no error: what is given begins with the next record.
        """
        found = await context.directory.get_partition(topic, partition)
        start = await context.read_path.start_offset(found, partition, offset=offset, timestamp=timestamp)
        wanted = PartitionFetch(topic=found, partition=partition, offset=start, max_bytes=max_bytes)
        fetched = await context.read_path.fetch_one(wanted, max_wait_ms=max_wait_ms)
        return PendingResponse(
            RecordsRendering(topic, fetched, from_offset=start, max_records=max_records, max_bytes=max_bytes),
            fetched_bytes=fetched.size,
            budget=context.read_path.budget,
            pool=context.pools.rendering,
        )

    return routes


_PRODUCE_RESPONSES: dict[int | str, dict[str, object]] = {
    200: {"model": ProduceAnswer},
    404: {"model": ErrorAnswer},
    413: {"model": ErrorAnswer},
    422: {"model": ProduceAnswer},
    503: {"model": ErrorAnswer},
}
_READ_RESPONSES: dict[int | str, dict[str, object]] = {
    200: {"model": RecordsAnswer},
    404: {"model": ErrorAnswer},
    416: {"model": ErrorAnswer},
    503: {"model": ErrorAnswer},
}
