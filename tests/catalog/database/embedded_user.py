"""Process that uses an embedded PostgreSQL until its standard input ends.

python -m tests.catalog.database.embedded_user DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

import psycopg

from catalog.database.embedded.server import EmbeddedPostgres

if __name__ == "__main__":
    with EmbeddedPostgres(Path(sys.argv[1])) as server, psycopg.connect(server.url) as connection:
        sys.stdout.write(f"{connection.execute('SELECT 1').fetchone()}\n")
        sys.stdout.flush()
        sys.stdin.read()
