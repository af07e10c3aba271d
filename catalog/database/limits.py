"""Limits on the connections of a process to the catalog, which are settings of the process."""

from __future__ import annotations

from dataclasses import dataclass

from core.settings import internal, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseLimits:
    """Limits on connections and durations (in seconds) of one process.

    `commit_connections` are reserved for commits, and `heartbeat_connections` for heartbeats. An agent's
    fetches use at most `fetch_connections`, its groups `group_connections`, and its maintenance
    `maintenance_connections`. All are added to `max_connections`. A process opens so many only if some are
    stuck (`ConnectionStock`). It closes the last one of a kind when it is idle for `idle_seconds`, and the
    others after `spare_seconds`.

    A commit that waits longer than `commit_lock_seconds` for a lock gives way and tries again, for
    `lock_seconds` in all. Other transactions do the same after a part of `silent_client_seconds`. A
    transaction is ended when its client is silent for that long, so that a frozen process does not hold its
    locks.

    The server cannot notice the silence of a client within a statement. Then a process that has waited for a
    lock ends the transaction, or maintenance after `frozen_client_seconds`, which spares slow connections.

    `response_seconds` is how long a server may not respond at all before its connection is closed. A call is
    retried for `retry_seconds` while no connection can be opened.

    With `allow_unsafe_commits`, a server may acknowledge commits that a crash or a failover loses.
    """

    max_connections: int = setting(
        8,
        "Maximum number of connections of a process, without those for fetches, groups, maintenance, commits"
        " and heartbeats.",
        name="catalog_max_connections",
    )
    fetch_connections: int = setting(
        4, "Maximum number of connections of an agent for fetches.", name="catalog_fetch_connections"
    )
    group_connections: int = setting(
        2, "Maximum number of connections of an agent for consumer groups.", name="catalog_group_connections"
    )
    commit_connections: int = setting(
        2, "Connections of an agent that are reserved for commits.", name="catalog_commit_connections"
    )
    heartbeat_connections: int = internal(1, "Connections of an agent that are reserved for heartbeats.")
    maintenance_connections: int = internal(2, "Maximum number of connections of an agent for maintenance.")
    stuck_seconds: float = internal(
        0.5, "Time after which a connection in use counts as stuck, so that a process opens more.", ge=0
    )
    idle_seconds: float = internal(60.0, "Time after which an idle connection is closed.", ge=0)
    spare_seconds: float = internal(
        10.0, "Time after which an idle connection is closed that is not the only one of its kind.", ge=0
    )
    connect_seconds: int = setting(
        10, "Time for opening a connection, or waiting for a free one.", name="catalog_connect_seconds"
    )
    response_seconds: int = setting(
        60,
        "Time after which a connection is closed whose server sends nothing at all; it exceeds the statement "
        "timeout.",
        name="catalog_response_seconds",
    )
    retry_seconds: float = internal(
        10.0, "Time for which a call is retried while no connection can be opened.", ge=0
    )
    statement_seconds: int = setting(
        30, "PostgreSQL's `statement_timeout`.", name="catalog_statement_seconds"
    )
    lock_seconds: int = setting(
        20, "Time for which a transaction waits for locks in all.", name="catalog_lock_seconds"
    )
    commit_lock_seconds: float = internal(
        0.5, "Time after which a commit that waits for a lock gives way and tries again.", ge=0.001
    )
    silent_client_seconds: float = internal(
        2.0, "Time after which a transaction is ended whose client is silent.", ge=0.001
    )
    frozen_client_seconds: float = internal(
        30.0,
        "Time after which such a transaction is ended even if no transaction waits for its locks.",
        ge=0.001,
    )
    allow_unsafe_commits: bool = internal(False, "Accept a server that may lose acknowledged commits.")
