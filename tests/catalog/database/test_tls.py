"""The catalog over TLS: libpq verifies the server's certificate and host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import conninfo_to_dict

from catalog.errors import CatalogUnavailableError
from catalog.open import open_catalog
from core.clock import SystemClock
from tests.fixtures.certificates import Authority
from tests.fixtures.tls_proxy import running_tls_proxy

if TYPE_CHECKING:
    from pathlib import Path

    from core.ids import Ids

pytestmark = [pytest.mark.integration]


def test_verify_full_accepts_only_the_right_certificate(catalog_url: str, ids: Ids, tmp_path: Path) -> None:
    """Another authority, another host and an expired certificate are refused. The message says why."""
    parts = {name: str(value) for name, value in conninfo_to_dict(catalog_url).items()}
    host, port = parts.get("host", ""), parts.get("port", "5432")
    target = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, int(port))
    authority = Authority(tmp_path)
    (tmp_path / "x").mkdir()
    stranger = Authority(tmp_path / "x", "stranger")
    clock = SystemClock()

    def version(port: int, name: str, root: Path) -> None:
        url = (
            f"postgresql://{parts['user']}@{name}:{port}/{parts['dbname']}"
            f"?sslmode=verify-full&sslrootcert={root}&hostaddr=127.0.0.1"
        )
        open_catalog(url, clock, ids).close()

    right = authority.issue("right", "localhost")
    expired = authority.issue("expired", "localhost", is_expired=True)
    with running_tls_proxy(right, target, postgres=True) as port_right:
        version(port_right, "localhost", authority.file)
        with pytest.raises(CatalogUnavailableError, match="certificate verify failed"):
            version(port_right, "localhost", stranger.file)
        with pytest.raises(CatalogUnavailableError, match="does not match host name"):
            version(port_right, "db.example", authority.file)
    with (
        running_tls_proxy(expired, target, postgres=True) as port_expired,
        pytest.raises(CatalogUnavailableError, match=r"certificate verify failed|expired"),
    ):
        version(port_expired, "localhost", authority.file)
