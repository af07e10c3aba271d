"""An agent loses an essential part while it serves."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING
from unittest.mock import patch

import httpx
import psycopg
import pytest

from agent.write.write_path import WritePath
from core.exit_codes import PART_FAILED
from object_store.open import StoreConfig
from tests.flood.flooded_agent import TIMEOUT_SECONDS, FloodedAgent

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


def end_the_committer() -> None:
    """Let the task that commits files fail at the first file."""
    patch.object(WritePath, "_commit_and_complete", side_effect=ValueError("a defect")).start()


def test_an_agent_whose_committer_has_failed_exits_with_a_code_of_its_own(
    catalog_url: str, tmp_path: Path
) -> None:
    """Nothing is acknowledged, `/livez` reports the part, and the session ends in order."""
    store = StoreConfig(url=str(tmp_path))
    answers: list[httpx.Response] = []
    with FloodedAgent(catalog_url, store, exit_code=PART_FAILED, sabotage=end_the_committer) as agent:
        with agent.http() as client:
            client.post("/v1/topics", json={"name": "t"}).raise_for_status()

        def produce() -> None:
            with agent.http() as client, contextlib.suppress(httpx.HTTPError):
                answers.append(client.post("/v1/topics/t/records", json={"records": [{"value": "x"}]}))

        producing = threading.Thread(target=produce)
        producing.start()
        problems: set[str] = set()
        with contextlib.suppress(httpx.HTTPError):
            while not problems:
                url = f"http://{agent.addresses['health']}/livez"
                problems = set(httpx.get(url, timeout=TIMEOUT_SECONDS, trust_env=False).json()["problems"])
        agent.process.join(TIMEOUT_SECONDS)
        producing.join(TIMEOUT_SECONDS)
    assert "commits" in problems  # others end as the agent stops
    assert not any(answer.is_success for answer in answers)
    with psycopg.connect(catalog_url) as connection:
        assert connection.execute("SELECT state FROM siltstone.sessions").fetchall() == [("ended",)]
