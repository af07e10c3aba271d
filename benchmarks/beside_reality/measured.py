"""Figures of the run: the requests that the S3 server received, and the rows of the catalog."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import psycopg

from benchmarks.beside_reality.processes import AGENT, WATCHER
from catalog.database.connection import connection_string
from catalog.database.limits import DatabaseLimits
from cost_model.engine.counts import Counts, Sample
from cost_model.engine.events import ObservedRound
from object_store.names import IDENTITY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TIMES: Final = (
    "SELECT created_ms, coalesce(finished_ms, 9223372036854775807) FROM jobs"
    " WHERE state IN ('running', 'completed') ORDER BY created_ms"
)
_TABLES: Final = (
    "extents",
    "files",
    "topics",
    "partitions",
    "producers",
    "sessions",
    "jobs",
    "commit_results",
)
"""Tables that the model counts."""

_ROWS: Final = "SELECT " + ", ".join(f"(SELECT count(*) FROM {name}) AS {name}" for name in _TABLES)
_EXTENTS: Final = "SELECT coalesce(sum(length), 0)::bigint FROM extents"
_WAITING: Final = (
    "SELECT count(DISTINCT file_id) FROM extents JOIN files USING (file_id) WHERE kind = 'ingestion'"
)
_JOBS: Final = (
    "SELECT split_part(spec ->> 'reason', ' ', 1), count(*) FROM jobs WHERE state = 'completed' GROUP BY 1"
)


@dataclass(slots=True, kw_only=True)
class Figures:
    """Counts of the measured time, and the state at its end; `others` are requests of no counted kind."""

    counts: Counts
    sample: Sample
    others: int = 0


@dataclass(slots=True)
class RequestTally:
    """Counts of logged requests by kind and sender, and the objects that exist after them."""

    counts: Counts = field(default_factory=Counts)
    others: int = 0
    failed: int = 0
    stored: dict[str, int] = field(default_factory=dict)
    _parts: dict[str, int] = field(default_factory=dict)

    def add(self, request: Mapping[str, Any]) -> None:
        """Add one request."""
        self.failed += request["status"] >= 400
        handler = {"PUT": self._put, "GET": self._get, "POST": self._post}.get(request["method"])
        query = parse_qs(request["query"], keep_blank_values=True)
        if handler is None or not handler(request, query):
            self.others += 1

    def _put(self, request: Mapping[str, Any], query: Mapping[str, list[str]]) -> bool:
        path, size, counts = request["path"], request["bytes_in"], self.counts
        if "partNumber" in query:
            counts.multipart_part += 1
            counts.written_bytes += size
            self._parts[path] = self._parts.get(path, 0) + size
            return True
        if AGENT in request["agent"] and "/ingest/" in path:
            counts.put_ingest += 1
            counts.ingested_bytes += size
        elif WATCHER in request["agent"] and "/compact/" in path:
            counts.put_compaction += 1
            counts.written_bytes += size
        else:
            return False
        self.stored[path] = size
        return True

    def _get(self, request: Mapping[str, Any], query: Mapping[str, list[str]]) -> bool:
        counts, agent = self.counts, request["agent"]
        if "list-type" in query or "uploads" in query:
            counts.list_gc += 1
        elif request["path"].endswith(IDENTITY_NAME):
            counts.get_gc += 1
        elif AGENT in agent:
            counts.get_fetch += 1
            counts.fetch_bytes += request["bytes_out"]
        elif WATCHER in agent:
            counts.get_compaction += 1
            counts.read_bytes += request["bytes_out"]
        else:
            return False
        return True

    def _post(self, request: Mapping[str, Any], query: Mapping[str, list[str]]) -> bool:
        counts = self.counts
        if "delete" in query:
            counts.delete_calls += 1
            counts.deleted_objects += len(request["deleted"])
            bucket = request["path"].strip("/")
            for key in request["deleted"]:
                self.stored.pop(f"/{bucket}/{key}", None)
        elif "uploads" in query:
            counts.multipart_create += 1
        elif "uploadId" in query:
            counts.multipart_complete += 1
            self.stored[request["path"]] = self._parts.pop(request["path"], 0)
        else:
            return False
        return True


def tally(requests: Iterable[Mapping[str, Any]]) -> RequestTally:
    """Return the counts of all these requests."""
    found = RequestTally()
    for request in requests:
        found.add(request)
    return found


@dataclass(frozen=True, slots=True)
class CatalogState:
    """Rows by table, live bytes, ingestion files with live extents, and completed jobs by reason."""

    rows: Mapping[str, int]
    live_bytes: int
    waiting_files: int
    jobs: Mapping[str, int]


def catalog_state(url: str) -> CatalogState:
    """Query the catalog."""
    with psycopg.connect(connection_string(url, DatabaseLimits())) as connection:
        rows = connection.execute(_ROWS).fetchone()
        live = connection.execute(_EXTENTS).fetchone()
        waiting = connection.execute(_WAITING).fetchone()
        jobs = connection.execute(_JOBS).fetchall()
    assert rows is not None
    assert live is not None
    assert waiting is not None
    return CatalogState(dict(zip(_TABLES, rows, strict=True)), live[0], waiting[0], dict(jobs))


def observed_rounds(url: str, begun_ms: int) -> list[ObservedRound]:
    """Return the rounds of the watcher since a moment."""
    with psycopg.connect(connection_string(url, DatabaseLimits())) as connection:
        times = connection.execute(_TIMES).fetchall()
    return group_rounds([(created - begun_ms, finished - begun_ms) for created, finished in times])


def group_rounds(jobs: Iterable[tuple[int, int]]) -> list[ObservedRound]:
    """Return the rounds of jobs, given the times at which each was created and finished, in order.

    A watcher plans again when all jobs of a round have ended.
    """
    rounds: list[ObservedRound] = []
    for created, finished in jobs:
        if rounds and created < rounds[-1].published_ms:
            last = rounds[-1]
            rounds[-1] = replace(last, published_ms=max(last.published_ms, finished))
        else:
            rounds.append(ObservedRound(planned_ms=created, published_ms=finished))
    return rounds


def figures_of(
    begin: RequestTally, end: RequestTally, jobs_before: Mapping[str, int], state: CatalogState
) -> Figures:
    """Return the difference between the log's beginning and its end, with the state at the end."""
    counts = end.counts.since(begin.counts)
    # The catalog does not know the kinds of jobs, only their sum is compared.
    counts.ingestion_jobs = sum(state.jobs.values()) - sum(jobs_before.values())
    sample = Sample(
        day=0.0,
        live_bytes=state.live_bytes,
        stored_bytes=sum(end.stored.values()),
        objects=len(end.stored),
        extents=state.rows["extents"],
        rows=sum(state.rows.values()),
        waiting_files=state.waiting_files,
    )
    return Figures(counts=counts, sample=sample, others=end.others - begin.others)
