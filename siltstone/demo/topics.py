"""Topics of the demo: recreated by each run; topics of other users are never deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from catalog.model import JobState
from core.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from catalog.model import Topic
    from siltstone.context import AppContext

TOPICS_FILE = "demo.json"
_MAX_JOBS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTopic:
    """Configuration of one of the demo's topics."""

    name: str
    partitions: int
    compacted: bool
    config: Mapping[str, str]


FLIGHTS = DemoTopic(name="flights", partitions=12, compacted=True, config={"cleanup.policy": "compact"})
# The rows are from 2013 and would expire at once under Kafka's default retention of seven days.
WEATHER = DemoTopic(
    name="weather",
    partitions=3,
    compacted=False,
    config={"cleanup.policy": "delete", "retention.ms": "-1"},
)


def recreate(context: AppContext, data_dir: Path) -> tuple[Topic, Topic]:
    """Create the topics for flights and weather, after deleting those of an earlier run.

    A file in the data directory records which topics earlier runs created; only those are deleted. Raises
    InvalidInputError if another topic has the same name.
    """
    file = data_dir / TOPICS_FILE
    own_topics = _recorded_topics(file)
    _cancel_jobs(context, own_topics)
    for topic in (FLIGHTS, WEATHER):
        try:
            found = context.catalog.topics.get(topic.name)
        except NotFoundError:
            continue
        if str(found.topic_id) not in own_topics:
            raise InvalidInputError(
                f"topic {topic.name} exists and was not created by a demo of data directory {data_dir}",
                remedy=f"use another catalog, or delete it with: siltstone topics delete {topic.name}",
            )
        context.catalog.topics.delete(topic.name)
    created = []
    for topic in (FLIGHTS, WEATHER):
        created.append(context.catalog.topics.create(topic.name, topic.partitions, dict(topic.config)))
        data_dir.mkdir(parents=True, exist_ok=True)
        file.write_bytes(orjson.dumps({"topics": [str(each.topic_id) for each in created]}))
    return created[0], created[1]


def _cancel_jobs(context: AppContext, own_topics: frozenset[str]) -> None:
    """Cancel the jobs of an interrupted run that concern only the demo's own topics."""
    for job in context.catalog.jobs.list((JobState.SUBMITTED, JobState.RUNNING), limit=_MAX_JOBS):
        if {str(partition.topic_id) for partition in job.spec.partitions} <= own_topics:
            context.catalog.jobs.cancel(job.spec.job_id, "another run of the demo recreates its topics")


def _recorded_topics(file: Path) -> frozenset[str]:
    try:
        return frozenset(map(str, orjson.loads(file.read_bytes())["topics"]))
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return frozenset()
