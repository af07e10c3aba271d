"""Routes of topics, their configuration and the bounds of their partitions: `/v1/topics`."""

from functools import partial
from uuid import UUID

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from agent.http.authorization import Access
from agent.http.context import HttpContext
from agent.http.documentation import describes_body, error_responses
from agent.http.errors import InvalidBodyError
from agent.http.models import (
    CreateTopicBody,
    PartitionResponse,
    PartitionsResponse,
    TopicResponse,
    TopicsResponse,
)
from agent.http.throttling import Mutations, charged_route
from agent.http.transport.request_body import json_body
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import (
    CREATE_IN_CLUSTER,
    CREATE_TOPIC,
    DELETE_IN_CLUSTER,
    DELETE_TOPIC,
    DESCRIBE_TOPIC,
    DESCRIBE_TOPIC_CONFIGS,
    READ_TOPIC,
)
from catalog.config.definitions import TOPIC_SETTINGS
from catalog.model import Topic

_MAX_TOPIC_BYTES = 64 * 1024


def topic_response(topic: Topic, access: Access) -> TopicResponse:
    """Return the topic in the form of the API, without settings if the client may not describe them."""
    shows_settings = access.lists(DESCRIBE_TOPIC_CONFIGS, topic.name)
    return TopicResponse(
        name=topic.name,
        topic_id=str(topic.topic_id),
        partitions=topic.partition_count,
        created_ms=topic.created_ms,
        config={name: topic.config.text(name) for name in TOPIC_SETTINGS} if shows_settings else {},
        overrides=dict(topic.config.explicit) if shows_settings else {},
    )


def router(context: HttpContext) -> APIRouter:
    """Return the routes of topics."""
    routes = APIRouter(prefix="/v1/topics", tags=["topics"], route_class=charged_route(context.quotas))
    catalog, pool = context.topics, context.pools.catalog
    access_of = partial(Access, context.authorizer)

    @routes.get(
        "",
        response_description="All topics that the client may describe.",
        responses=error_responses(429, 503),
    )
    async def list_topics(request: Request) -> TopicsResponse:
        """List all topics, sorted by name."""
        access, yielding, topics = access_of(request), CooperativeYield(), []
        for topic in await pool.run(catalog.list):
            if access.lists(DESCRIBE_TOPIC, topic.name):
                topics.append(topic_response(topic, access))
            await yielding.step()
        return TopicsResponse(topics=topics)

    @routes.post(
        "",
        status_code=201,
        response_description="The topic was created.",
        responses=error_responses(403, 408, 409, 413, 415, 422, 429, 503),
        openapi_extra=describes_body("CreateTopicBody"),
    )
    async def create_topic(request: Request) -> TopicResponse:
        """Create a topic. `config` accepts Kafka's settings, such as `cleanup.policy`, and `storage.mode`."""
        async with json_body(
            request,
            limit=_MAX_TOPIC_BYTES,
            budget=context.request_budget,
            seconds=context.settings.body_timeout_ms / 1000,
        ) as body:
            wanted = _parse(body)
        access = access_of(request)
        access.require(CREATE_TOPIC, wanted.name, or_cluster=CREATE_IN_CLUSTER)
        Mutations(context.quotas, request).charge(wanted.partitions)
        config = context.settings.local_tier.with_storage_mode(wanted.name, wanted.config)
        create = partial(catalog.create, wanted.name, wanted.partitions, config)
        return topic_response(await pool.run(create), access)

    @routes.get(
        "/{topic}", response_description="The topic.", responses=error_responses(403, 404, 422, 429, 503)
    )
    async def describe_topic(request: Request, topic: str) -> TopicResponse:
        """Describe one topic."""
        access = access_of(request)
        access.require(DESCRIBE_TOPIC, topic)
        return topic_response(await pool.run(partial(catalog.get, topic)), access)

    @routes.delete(
        "/{topic}",
        status_code=204,
        response_description="The topic was deleted.",
        responses=error_responses(403, 404, 422, 429, 503),
    )
    async def delete_topic(request: Request, topic: str) -> Response:
        """Delete a topic and all its records. It can be undeleted for `topic_delete_delay_ms`."""
        access_of(request).require(DELETE_TOPIC, topic, or_cluster=DELETE_IN_CLUSTER)
        mutations = Mutations(context.quotas, request)
        if mutations.is_limited:
            mutations.charge((await pool.run(partial(catalog.get, topic))).partition_count)
        await pool.run(partial(catalog.delete, topic))
        context.directory.invalidate(topic)
        return Response(status_code=204)

    @routes.post(
        "/{topic}/undelete",
        response_description="The topic exists again.",
        responses=error_responses(403, 404, 409, 422, 429, 503),
    )
    async def undelete_topic(
        request: Request, topic: str, topic_id: UUID | None = None, new_name: str | None = None
    ) -> TopicResponse:
        """Bring a deleted topic back with its records, settings and committed offsets.

        `topic_id` chooses one of several deleted topics of that name. `new_name` is for a name that another
        topic has now. The client must be allowed to delete the one and to create the other. If the
        name changes, it must also be allowed to read the deleted topic.
        """
        access = access_of(request)
        _require_undelete(access, topic, new_name or topic)
        mutations = Mutations(context.quotas, request)
        mutations.charge(0)  # refuses a user that has to wait
        undelete = partial(catalog.deleted.undelete, topic, topic_id=topic_id, new_name=new_name)
        found = await pool.run(undelete)
        mutations.record(found.partition_count)
        context.directory.invalidate(found.name)
        return topic_response(found, access)

    @routes.get(
        "/{topic}/partitions",
        response_description="The partitions.",
        responses=error_responses(403, 404, 422, 429, 503),
    )
    async def list_partitions(request: Request, topic: str) -> PartitionsResponse:
        """Return the bounds of each partition of a topic."""
        access_of(request).require(DESCRIBE_TOPIC, topic)
        found = await pool.run(partial(catalog.get, topic))
        states = await pool.run(partial(catalog.partitions, found.topic_id))
        return PartitionsResponse(
            topic=topic,
            partitions=[
                PartitionResponse(
                    partition=state.partition,
                    log_start_offset=state.log_start_offset,
                    last_stable_offset=state.last_stable_offset,
                    high_watermark=state.high_watermark,
                    log_end_offset=state.log_end_offset,
                    first_dirty_offset=state.first_dirty_offset,
                    leader_epoch=state.leader_epoch,
                )
                for state in states
            ],
        )

    return routes


def _require_undelete(access: Access, name: str, new_name: str) -> None:
    """Raise `NotAuthorizedError` unless the client may bring a topic back under a name."""
    access.require(DELETE_TOPIC, name, or_cluster=DELETE_IN_CLUSTER)
    access.require(CREATE_TOPIC, new_name, or_cluster=CREATE_IN_CLUSTER)
    if new_name != name:  # from now on, rights on the new name apply to the records
        access.require(READ_TOPIC, name)


def _parse(body: bytes) -> CreateTopicBody:
    try:
        return CreateTopicBody.model_validate_json(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        raise InvalidBodyError(
            "; ".join(f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in problems),
            remedy='send {"name": …, "partitions": …, "config": {…}}',
        ) from None
