"""`/v1/topics`: topics, their configuration, and the bounds of their partitions."""

from functools import partial

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from agent.http.context import HttpContext
from agent.http.documentation import describes_body
from agent.http.errors import InvalidBodyError
from agent.http.models import (
    CreateTopicBody,
    PartitionAnswer,
    PartitionsAnswer,
    TopicAnswer,
    TopicsAnswer,
)
from agent.http.request_body import json_body
from catalog.config.topic_settings import SETTINGS
from catalog.model import Topic

_MAX_TOPIC_BYTES = 64 * 1024


def topic_answer(topic: Topic) -> TopicAnswer:
    """A topic as the API shows it."""
    return TopicAnswer(
        name=topic.name,
        topic_id=str(topic.topic_id),
        partitions=topic.partition_count,
        created_ms=topic.created_ms,
        config={name: topic.config.text(name) for name in SETTINGS},
        overrides=dict(topic.config.explicit),
    )


def router(context: HttpContext) -> APIRouter:
    """The routes of topics."""
    routes = APIRouter(prefix="/v1/topics", tags=["topics"])
    catalog, pool = context.topics, context.pools.catalog

    @routes.get("")
    async def list_topics() -> TopicsAnswer:
        """Every topic, by name."""
        return TopicsAnswer(topics=[topic_answer(topic) for topic in await pool.run(catalog.list)])

    @routes.post("", status_code=201, openapi_extra=describes_body("CreateTopicBody"))
    async def create_topic(request: Request) -> TopicAnswer:
        """Create a topic. `config` takes Kafka's names, such as `cleanup.policy`; others are refused."""
        async with json_body(
            request,
            limit=_MAX_TOPIC_BYTES,
            budget=context.request_budget,
            seconds=context.settings.body_timeout_ms / 1000,
        ) as body:
            wanted = _parse(body)
        create = partial(catalog.create, wanted.name, wanted.partitions, wanted.config)
        return topic_answer(await pool.run(create))

    @routes.get("/{topic}")
    async def describe_topic(topic: str) -> TopicAnswer:
        """One topic."""
        return topic_answer(await pool.run(partial(catalog.get, topic)))

    @routes.delete("/{topic}", status_code=204)
    async def delete_topic(topic: str) -> Response:
        """Delete a topic and everything in it, at once and for good."""
        await pool.run(partial(catalog.delete, topic))
        context.directory.forget(topic)
        return Response(status_code=204)

    @routes.get("/{topic}/partitions")
    async def list_partitions(topic: str) -> PartitionsAnswer:
        """Where each partition begins and ends."""
        found = await pool.run(partial(catalog.get, topic))
        states = await pool.run(partial(catalog.partitions, found.topic_id))
        return PartitionsAnswer(
            topic=topic,
            partitions=[
                PartitionAnswer(
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


def _parse(body: bytes) -> CreateTopicBody:
    try:
        return CreateTopicBody.model_validate_json(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        raise InvalidBodyError(
            "; ".join(f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in problems),
            remedy='send {"name": …, "partitions": …, "config": {…}}',
        ) from None
