"""The session of an agent, and what it does when a failover has lost commits."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from agent.cluster.catalog_epoch import EpochInLoop
from agent.cluster.session import Session
from agent.supervision.control_loop import run_in
from agent.write.loss_recovery import LossRecovery

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.assembly.resources import Resources
    from agent.runtime.health import CallHealth, CallTime
    from agent.write.acknowledged_commits import AcknowledgedCommits
    from catalog.errors import SchemaVersionError


def create_session(
    resources: Resources,
    acknowledged: AcknowledgedCommits,
    catalog_health: CallHealth,
    heartbeat_time: CallTime,
    *,
    on_excluded: Callable[[SchemaVersionError], None],
    restore_local: Callable[[], None],
) -> Session:
    """Return the session, which recovers acknowledged commits that the catalog has lost.

    `restore_local` restores the local topics that were lost; it blocks.
    """
    settings = resources.settings
    loop = asyncio.get_running_loop()
    recovery = LossRecovery(
        resources.catalog,
        resources.store,
        acknowledged,
        automatic=settings.automatic_readoption,
        silent_ms=settings.broker_silent_ms,
        pool=resources.pools.catalog,
        metrics=resources.metrics,
        restore_local=restore_local,
    )
    return Session(
        resources.catalog.sessions,
        description=f"agent on {socket.gethostname()}, process {os.getpid()}",
        pool=resources.pools.session,
        ids=resources.ids,
        clock=resources.clock,
        interval_ms=settings.heartbeat_interval_ms,
        silent_ms=settings.broker_silent_ms,
        health=catalog_health,
        heartbeat_time=heartbeat_time,
        on_excluded=on_excluded,
        epoch=EpochInLoop(resources.epoch, loop),
        recover=lambda *lost: run_in(loop, recovery.run(*lost)),
    )
