"""Routes that produce and read records: `/v1/topics/{topic}/…/records`."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from fastapi import APIRouter, Path, Query, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from agent.http.authorization import Access
from agent.http.context import HttpContext
from agent.http.documentation import describes_body, error_responses
from agent.http.models import ProduceResponse, RecordsResponse
from agent.http.records.produce_body import parse_records, render_results
from agent.http.records.rendering import PendingResponse, RecordsRendering, drop_unread
from agent.http.throttling import charged_route
from agent.http.transport.json_size import count_items
from agent.http.transport.request_body import json_body, reserving_items
from agent.read.fetch_plan import PartitionFetch
from agent.read.fetch_result import FetchResult
from agent.security.rights import READ_TOPIC, WRITE_TOPIC

T = TypeVar("T")
_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1
_MAX_SKIPPED_RESULTS = 64

Partition = Annotated[int, Path(ge=0, le=_INT32_MAX)]
Offset = Annotated[
    int | None,
    Query(ge=0, le=_INT64_MAX, description="First offset to read. The default is the log start offset."),
]
Timestamp = Annotated[
    int | None,
    Query(
        ge=0,
        le=_INT64_MAX,
        description="Start at the first record at or after this time (milliseconds since the epoch) instead. "
        "If there is none, start at the high watermark.",
    ),
]

Isolation: TypeAlias = Literal["read_uncommitted", "read_committed"]


def router(context: HttpContext) -> APIRouter:
    """Return the routes of records."""
    routes = APIRouter(
        prefix="/v1/topics/{topic}", tags=["records"], route_class=charged_route(context.quotas)
    )
    settings = context.settings

    async def produce(request: Request, topic: str, partition: int | None) -> Response:
        access = Access(context.authorizer, request)
        access.require(WRITE_TOPIC, topic)
        kernels, parsing = context.pools.kernels, context.pools.parsing
        async with json_body(
            request,
            limit=settings.max_request_bytes,
            budget=context.request_budget,
            seconds=settings.body_timeout_ms / 1000,
        ) as body:
            found = await context.directory.get(topic)
            items = await parsing.run(partial(count_items, body))
            access.require(WRITE_TOPIC, topic)  # again, because the body may have taken long to arrive
            async with reserving_items(context.parsing_budget, items):
                records = await parsing.run(partial(parse_records, body))
                produced = await context.producer.produce(found, records, partition)
        response = await kernels.run(partial(render_results, produced))
        status = 422 if produced.rejections and not produced.accepted else 200
        return Response(response, status_code=status, media_type="application/json")

    @routes.post("/records", openapi_extra=describes_body("ProduceBody"), responses=_PRODUCE_RESPONSES)
    async def produce_to_topic(topic: str, request: Request) -> Response:
        """Append records to the partitions that their keys select.

        The response is sent when the records are durable and have offsets. Each invalid record is rejected
        alone: the status is 200, and its result has an `error`. If all are rejected, the status is 422.
        """
        return await produce(request, topic, None)

    @routes.post(
        "/partitions/{partition}/records",
        openapi_extra=describes_body("ProduceBody"),
        responses=_PRODUCE_RESPONSES,
    )
    async def produce_to_partition(topic: str, partition: Partition, request: Request) -> Response:
        """Append records to one partition. A record that names another partition goes there."""
        return await produce(request, topic, partition)

    @routes.get("/partitions/{partition}/records", responses=_READ_RESPONSES)
    async def read_records(
        request: Request,
        topic: str,
        partition: Partition,
        offset: Offset = None,
        timestamp: Timestamp = None,
        max_records: Annotated[
            int, Query(ge=1, le=settings.max_max_records, description="Maximum number of records.")
        ] = settings.default_max_records,
        max_bytes: Annotated[
            int,
            Query(
                ge=1,
                le=settings.max_fetch_bytes,
                description="Maximum size of the response in bytes. One record may exceed it.",
            ),
        ] = settings.default_fetch_bytes,
        max_wait_ms: Annotated[
            int,
            Query(
                ge=0,
                le=settings.max_wait_ms,
                description="How long to wait for a record at the end of the log, in milliseconds.",
            ),
        ] = 0,
        isolation: Annotated[
            Isolation,
            Query(
                description="With `read_committed`, records of open and aborted transactions are left out, "
                "and the log ends at the last stable offset."
            ),
        ] = "read_uncommitted",
    ) -> Response:
        """Read records of one partition, at least one if there is any. Continue at `next_offset`.

        An offset may have no record. The response then starts with the next record.
        """
        access = Access(context.authorizer, request)
        access.require(READ_TOPIC, topic)
        found = await context.directory.get_partition(topic, partition)
        start = await context.read_path.start_offset(found, partition, offset=offset, timestamp=timestamp)
        wanted = PartitionFetch(
            topic=found,
            partition=partition,
            offset=start,
            max_bytes=max_bytes,
            committed_only=isolation == "read_committed",
        )
        fetched, size = await _while_connected(request, _fetch_records(context, wanted, max_wait_ms))
        access.require(READ_TOPIC, topic)  # again, because the right may have been revoked meanwhile
        return PendingResponse(
            RecordsRendering(topic, fetched, from_offset=start, max_records=max_records, max_bytes=max_bytes),
            fetched_bytes=size,
            budget=context.read_path.budget,
            pool=context.pools.rendering,
        )

    return routes


async def _fetch_records(
    context: HttpContext, wanted: PartitionFetch, max_wait_ms: int
) -> tuple[FetchResult, int]:
    """Return a result with at least one batch for the client, if there is any, and the bytes that it retains.

    Results with control batches and aborted batches only are skipped, a bounded number of them.
    """
    skipped = 0
    while True:
        fetched = await context.read_path.fetch_one(wanted, max_wait_ms=max_wait_ms)
        size = fetched.size
        if size and (fetched.has_transactions or wanted.topic.is_local):  # a local log does not know it
            drop = partial(drop_unread, fetched.batches, fetched.aborted)
            with context.read_path.budget.reserving(size):  # the call may wait for a thread
                fetched = replace(fetched, batches=await context.pools.rendering.run(drop))
        if fetched.batches or fetched.is_at_end or skipped == _MAX_SKIPPED_RESULTS:
            return fetched, size
        skipped += 1
        wanted = replace(wanted, offset=fetched.next_offset)


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; cancel it and raise `ClientDisconnect` when the client leaves."""

    async def until_disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(until_disconnected())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


_PRODUCE_RESPONSES: dict[int | str, dict[str, object]] = {
    200: {"model": ProduceResponse, "description": "At least one record was appended, or there was none."},
    **error_responses(403, 404, 408, 413, 415),
    422: {
        "model": ProduceResponse,
        "description": "All records were rejected, or the request body is invalid. There is an `error`.",
    },
    **error_responses(429, 503),
}
_READ_RESPONSES: dict[int | str, dict[str, object]] = {
    200: {"model": RecordsResponse, "description": "The records."},
    **error_responses(403, 404, 416, 422, 429, 503),
}
