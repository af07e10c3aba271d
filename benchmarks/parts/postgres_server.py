"""Processor time, WAL and tables of a PostgreSQL on this machine."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil

from catalog.database.connection import SCHEMA
from catalog.database.embedded.host import account_for, programs

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg


class PostgresServer:
    """Figures of a PostgreSQL on this machine; `directory` is None if it is not a private one."""

    def __init__(self, connection: psycopg.Connection[Any], directory: Path | None) -> None:
        self._connection = connection
        self._directory = directory
        self._postmaster = psutil.Process(psutil.Process(connection.info.backend_pid).ppid())

    def value(self, query: bytes) -> Any:  # noqa: ANN401  # any type of column
        """Return the only value of a query's only row."""
        row = self._connection.execute(query).fetchone()
        assert row is not None
        return row[0]

    def processor_seconds(self) -> float:
        """Return the processor time of all server processes, including ended ones."""
        seconds = 0.0
        for each in [self._postmaster, *self._postmaster.children()]:
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile: the postmaster has its time
                times = each.cpu_times()
                seconds += times.user + times.system
        own = self._postmaster.cpu_times()
        return float(seconds + own.children_user + own.children_system)

    def position(self) -> str:
        """Return the end of the WAL, which is made durable up to there."""
        self._connection.execute(b"SELECT pg_logical_emit_message(true, '', '')")
        return str(self.value(b"SELECT pg_current_wal_flush_lsn()"))

    def wal_bytes(self, begin: str, end: str) -> tuple[int, int]:
        """Return the bytes of records and of images of full pages in a part of the WAL.

        The server's own programs count them. A server that is not private gives (all bytes, 0).
        """
        if self._directory is None:
            difference = self._connection.execute(b"SELECT %s::pg_lsn - %s::pg_lsn", (end, begin)).fetchone()
            assert difference is not None
            return int(difference[0]), 0
        pgdata = self._directory / "pgdata"
        report = account_for(pgdata).run(
            str(programs() / "pg_waldump"), "-p", str(pgdata / "pg_wal"), "-s", begin, "-e", end, "-z"
        )
        (total,) = (line for line in report.stdout.splitlines() if line.startswith("Total"))
        # Total  <records>  <bytes> [<share>]  <image bytes> [<share>]  <combined bytes> [<share>]
        _, _, record_bytes, _, image_bytes, *_ = total.split()
        return int(record_bytes), int(image_bytes)

    def table_bytes(self) -> dict[str, int]:
        """Return the sizes of the tables that commits write, with their indexes."""
        rows = self._connection.execute(
            b"SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relnamespace = %s::regnamespace"
            b" AND relname = ANY (%s) ORDER BY relname",
            (SCHEMA, ["commit_results", "extents", "files", "partitions", "producers"]),
        )
        return {name: int(size) for name, size in rows}

    def copy_tables(self) -> None:
        """Create the tables of the plain sessions, with the rows of all partitions."""
        for table in (b"extents", b"partitions"):
            self._connection.execute(
                b"DROP TABLE IF EXISTS plain_%b; CREATE TABLE plain_%b (LIKE %b INCLUDING ALL)"
                % ((table,) * 3)
            )
        self._connection.execute(b"ALTER TABLE plain_partitions SET (fillfactor = 50)")
        self._connection.execute(b"INSERT INTO plain_partitions SELECT * FROM partitions")

    def drop_tables(self) -> None:
        """Drop the copies."""
        self._connection.execute(b"DROP TABLE plain_extents, plain_partitions")
