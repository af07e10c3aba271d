"""The demo's topics: made anew for each run, and never somebody else's."""

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

NOTE = "demo.json"
_MAX_JOBS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTopic:
    """How one of the demo's topics is set up."""

    name: str
    partitions: int
    compacted: bool
    config: Mapping[str, str]


FLIGHTS = DemoTopic(name="flights", partitions=12, compacted=True, config={"cleanup.policy": "compact"})
# The rows are of 2013: with Kafka's seven days of retention they would expire at once.
WEATHER = DemoTopic(
    name="weather",
    partitions=3,
    compacted=False,
    config={"cleanup.policy": "delete", "retention.ms": "-1"},
)


def recreate(context: AppContext, data_dir: Path) -> tuple[Topic, Topic]:
    """Flights and weather, new and empty.

    A note in the data directory remembers which topics earlier runs made; only those are deleted. Raises
    `InvalidInputError` when a topic of the same name is somebody else's.
    """
    note = data_dir / NOTE
    ours = _remembered(note)
    _cancel_jobs(context, ours)
    for topic in (FLIGHTS, WEATHER):
        try:
            found = context.catalog.topics.get(topic.name)
        except NotFoundError:
            continue
        if str(found.topic_id) not in ours:
            raise InvalidInputError(
                f"this catalog has a topic {topic.name} that no demo of data directory {data_dir} made",
                remedy=f"use another catalog, or delete it with: siltstone topics delete {topic.name}",
            )
        context.catalog.topics.delete(topic.name)
    made = []
    for topic in (FLIGHTS, WEATHER):
        made.append(context.catalog.topics.create(topic.name, topic.partitions, dict(topic.config)))
        data_dir.mkdir(parents=True, exist_ok=True)
        note.write_bytes(orjson.dumps({"topics": [str(each.topic_id) for each in made]}))
    return made[0], made[1]


def _cancel_jobs(context: AppContext, ours: frozenset[str]) -> None:
    """Give up what an interrupted run left to be done, where it is for no topic but its own."""
    for job in context.catalog.jobs.list((JobState.SUBMITTED, JobState.RUNNING), limit=_MAX_JOBS):
        if {str(partition.topic_id) for partition in job.spec.partitions} <= ours:
            context.catalog.jobs.cancel(job.spec.job_id, "another run of the demo makes its topics anew")


def _remembered(note: Path) -> frozenset[str]:
    try:
        return frozenset(map(str, orjson.loads(note.read_bytes())["topics"]))
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return frozenset()
