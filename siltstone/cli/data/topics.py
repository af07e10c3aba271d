"""`siltstone topics`: create, change, list, delete and undelete topics in the catalog, without an agent.

Only the offsets of topics with `storage.mode=local` are requested from the agents that lead their partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import click
from typing_extensions import override

from catalog.config.definitions import TOPIC_SETTINGS
from core.quantities import count, human_duration
from local_tier.files.metadata_files import parse_uuid
from siltstone.cli.command_group import CommandGroup
from siltstone.cli.options import json_option, with_settings
from siltstone.console import confirm, emit_json, report_console, table
from siltstone.context import open_context
from siltstone.kafka_client.connection import parse_properties
from siltstone.kafka_client.local_offsets import fetch_local_offsets

if TYPE_CHECKING:
    from catalog.model import PartitionState, Topic
    from catalog.open import Catalog
    from siltstone.kafka_client.local_offsets import LocalOffsets
    from siltstone.settings.configuration import Settings


class _TopicId(click.ParamType[UUID]):
    """Identifier of a topic, as a UUID or in Kafka's form, which the directories of logs have."""

    name = "UUID"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> UUID:
        found = parse_uuid(value) if isinstance(value, str) else None
        if found is None:
            found = click.UUID.convert(value, param, ctx)
        assert isinstance(found, UUID)
        return found


TOPIC_ID: Final = _TopicId()


@click.group(cls=CommandGroup)
def command() -> None:
    """Create, change, list, describe, delete and undelete topics."""


@command.command()
@click.argument("name")
@click.option(
    "--partitions", type=click.IntRange(min=1), default=1, show_default=True, help="Number of partitions."
)
@click.option(
    "--config", "topic_config", multiple=True, metavar="NAME=VALUE", help="Topic setting. May be repeated."
)
@click.option(
    "--id",
    "topic_id",
    type=TOPIC_ID,
    help="Identifier of a topic that a failover or a restore has lost: siltstone fsck --readopt names it, "
    "and partition.metadata in a directory of its log.  [default: a new one]",
)
@json_option
@with_settings(file_flags=("--config-file",))
def create(
    settings: Settings,
    *,
    name: str,
    partitions: int,
    topic_config: tuple[str, ...],
    topic_id: UUID | None,
    as_json: bool,
) -> None:
    """Create topic NAME.

    Topic settings have Kafka's names and defaults, such as --config cleanup.policy=compact.
    """
    config = dict(_assignment(text) for text in topic_config)
    with open_context(settings, check_binding=False) as context:
        topic = context.catalog.topics.create(name, partitions, config, topic_id=topic_id)
    if as_json:
        emit_json(_topic_fields(topic))
    else:
        click.echo(f"created {topic.name} with {count(partitions, 'partition')}")


@command.command(name="add-partitions")
@click.argument("name")
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    required=True,
    help="Number of partitions that the topic is to have.",
)
@json_option
@with_settings()
def add_partitions(settings: Settings, *, name: str, partitions: int, as_json: bool) -> None:
    """Increase the number of partitions of topic NAME.

    Keys may move to other partitions, as in Kafka.
    """
    with open_context(settings, check_binding=False, create=False) as context:
        topic = context.catalog.topics.add_partitions(name, partitions)
    if as_json:
        emit_json(_topic_fields(topic))
    else:
        click.echo(f"{topic.name} has {count(topic.partition_count, 'partition')}")


@command.command(name="list")
@click.option("--deleted", is_flag=True, help="List the deleted topics that can be undeleted.")
@json_option
@with_settings()
def list_topics(settings: Settings, *, deleted: bool, as_json: bool) -> None:
    """List every topic."""
    if deleted:
        _list_deleted(settings, as_json=as_json)
        return
    with open_context(settings, check_binding=False, create=False) as context:
        topics = sorted(context.catalog.topics.list(), key=lambda topic: topic.name)
    if as_json:
        emit_json({"topics": [_topic_fields(topic) for topic in topics]})
    elif not topics:
        click.echo("there are no topics; create one: siltstone topics create NAME")
    else:
        rows = [(each.name, each.partition_count, each.config.cleanup_policy) for each in topics]
        report_console().print(table(None, "topic", ">partitions", "cleanup.policy", rows=rows))


def _list_deleted(settings: Settings, *, as_json: bool) -> None:
    """List the deleted topics with the time until their records are removed."""
    delay_ms = settings.maintenance_settings().topic_delete_delay_ms
    with open_context(settings, check_binding=False, create=False) as context:
        found = context.catalog.topics.deleted.list()
        now_ms = context.clock.now_ms()
    left = {
        each.topic.topic_id: max(0, each.deleted_ms + delay_ms - now_ms) // 1000
        for each in found
        if not each.is_purged
    }
    topics = [each.topic for each in found if each.topic.topic_id in left]
    if as_json:
        fields = [{**_topic_fields(each), "seconds_left": left[each.topic_id]} for each in topics]
        emit_json({"deleted_topics": fields})
    elif not topics:
        click.echo("no deleted topic can be undeleted")
    else:
        rows = [
            (each.name, str(each.topic_id), each.partition_count, human_duration(left[each.topic_id]))
            for each in topics
        ]
        report_console().print(table(None, "topic", "id", ">partitions", ">time left", rows=rows))


@command.command()
@click.argument("name")
@click.option("--id", "topic_id", type=TOPIC_ID, help="Identifier, if several deleted topics had NAME.")
@click.option("--as", "new_name", metavar="NEWNAME", help="New name, if NAME is used again.")
@json_option
@with_settings()
def undelete(
    settings: Settings, *, name: str, topic_id: UUID | None, new_name: str | None, as_json: bool
) -> None:
    """Bring deleted topic NAME back.

    Its records, settings and committed offsets come back with it. This works for topic_delete_delay_ms after
    the deletion. Agents open the logs of a topic with storage.mode=local again. With --id, the command may be
    repeated if its result is not known.
    """
    with open_context(settings, check_binding=False, create=False) as context:
        topic = context.catalog.topics.deleted.undelete(name, topic_id=topic_id, new_name=new_name)
    if as_json:
        emit_json(_topic_fields(topic))
    else:
        click.echo(f"undeleted {name}" if topic.name == name else f"undeleted {name} as {topic.name}")


@command.command()
@click.argument("name")
@json_option
@with_settings()
def describe(settings: Settings, *, name: str, as_json: bool) -> None:
    """Show the settings and the partition offsets of topic NAME."""
    with open_context(settings, check_binding=False, create=False) as context:
        topic = context.catalog.topics.get(name)
        if topic.config.storage_mode == "local":
            states = [_local_offset_fields(each) for each in _local_offsets(settings, context.catalog, topic)]
        else:
            states = [_offset_fields(state) for state in context.catalog.topics.partitions(topic.topic_id)]
    if as_json:
        emit_json({**_topic_fields(topic), "partition_states": states})
        return
    console = report_console()
    console.print(f"[bold]{topic.name}[/bold]  id {topic.topic_id}")
    if topic.config.explicit:
        console.print(table(None, "setting", "value", rows=topic.config.explicit))
    else:
        console.print("every setting has its default")
    columns = [f">{name.removesuffix('_offset').replace('_', ' ')}" for name in states[0]]
    console.print(table(None, *columns, rows=[state.values() for state in states]))
    if any(None in state.values() for state in states):
        console.print(
            "-: only the leader of the partition knows it, and there is none or it does not respond"
        )


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@with_settings()
def delete(settings: Settings, *, name: str, yes: bool, as_json: bool) -> None:
    """Delete topic NAME and every record in it.

    The name is free at once. The records stay for topic_delete_delay_ms, and siltstone topics undelete brings
    the topic back until then.
    """
    with open_context(settings, check_binding=False, create=False) as context:
        topic = context.catalog.topics.get(name)
        if not yes:
            confirm(f"Delete topic {name} and every record in it?", refused=f"topic {name} was not deleted")
        context.catalog.topics.delete(topic.name)
    if as_json:
        emit_json({"deleted": name, "topic_id": str(topic.topic_id)})
    else:
        click.echo(f"deleted {name}; until its records are removed: siltstone topics undelete {name}")


def _assignment(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.UsageError(f"--config {text!r} is not NAME=VALUE, such as cleanup.policy=compact")
    return name.strip(), value.strip()


def _topic_fields(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "partitions": topic.partition_count,
        "created_ms": topic.created_ms,
        "config": {name: topic.config.text(name) for name in TOPIC_SETTINGS},
        "overrides": dict(topic.config.explicit),
    }


def _local_offsets(settings: Settings, catalog: Catalog, topic: Topic) -> list[LocalOffsets]:
    """Request offsets from the leaders, with the credentials of the settings."""
    configured = () if settings.client_config is None else (settings.client_config,)
    return fetch_local_offsets(catalog, topic, parse_properties(configured, ()))


def _local_offset_fields(offsets: LocalOffsets) -> dict[str, int | None]:
    return {
        "partition": offsets.partition,
        "leader": offsets.leader,
        "log_start_offset": offsets.log_start_offset,
        "high_watermark": offsets.log_end_offset,
        "log_end_offset": offsets.log_end_offset,
    }


def _offset_fields(state: PartitionState) -> dict[str, int | None]:
    return {
        "partition": state.partition,
        "log_start_offset": state.log_start_offset,
        "first_dirty_offset": state.first_dirty_offset,
        "high_watermark": state.high_watermark,
        "log_end_offset": state.log_end_offset,
    }
