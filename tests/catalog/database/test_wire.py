"""The proxy of PostgreSQL delays a COMMIT. Without a delay, tests of late commits would show nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.catalog.database import wire
from tests.catalog.database.wire import WireProxy

if TYPE_CHECKING:
    from pathlib import Path


def test_a_delayed_commit_reaches_the_server_after_its_client_was_disconnected(
    catalog_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[tuple[float, int]] = []
    with psycopg.connect(catalog_url, autocommit=True) as direct:
        direct.execute("CREATE TABLE public.delayed (number int)")

        def count() -> int:
            (found,) = direct.execute("SELECT count(*) FROM public.delayed").fetchone() or (0,)
            return int(found)

        monkeypatch.setattr(wire, "time", SimpleNamespace(sleep=lambda each: slept.append((each, count()))))
        with WireProxy(catalog_url, tmp_path) as proxy:
            connection = psycopg.connect(proxy.url)
            connection.execute("INSERT INTO public.delayed VALUES (1)")
            proxy.delay_next_commit(0.5)
            with pytest.raises(psycopg.OperationalError):
                connection.commit()
            connection.close()
    assert slept == [(0.5, 0)]
