"""`siltstone agent`: run the broker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agent.runtime.process_resources import without_garbage_collection
from agent.runtime.slow_start_warning import warn_if_slow
from siltstone.cli.options import with_settings
from siltstone.context import check_store, create_catalog_ahead, create_data_dir, start_wait

if TYPE_CHECKING:
    from siltstone.settings.configuration import Settings


@click.command()
@click.option(
    "--stop-on-eof",
    is_flag=True,
    help="Stop also when standard input ends, so that the agent does not outlive its parent process.",
)
@with_settings(
    "http",
    "health",
    "kafka",
    "kafka_advertised",
    "listeners",
    "advertised_listeners",
    "http_listeners",
    "local_dirs",
)
def command(settings: Settings, *, stop_on_eof: bool) -> None:
    """Run an agent, the broker that serves Kafka and HTTP clients.

    When it is ready, it prints one line of JSON with the event "ready" and its addresses. On SIGTERM or ^C it
    finishes the requests that it has accepted and exits. Several agents may share a data directory, a catalog
    and an object store. Commands find the agents of their data directory.
    """
    create_data_dir(settings)  # commands find the agent by a file in it
    wait = start_wait(settings)
    check_store(settings, wait=wait)
    with create_catalog_ahead(settings):
        with warn_if_slow("loading its code"), without_garbage_collection():
            from siltstone.agent_runner import run_agent  # noqa: PLC0415 - it takes seconds, which the warning explains
        run_agent(settings, wait=wait, stop_on_eof=stop_on_eof)
