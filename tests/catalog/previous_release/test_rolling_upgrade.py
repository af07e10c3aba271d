"""A process of older code and this code on one catalog, before, during and after the migration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from catalog.open import migrate_catalog, open_catalog
from core.clock import SystemClock
from tests.catalog.checks import InvariantChecker
from tests.catalog.scene import Scene, run_of
from tests.fixtures import previous_release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.clock import Clock
    from core.ids import Ids
    from tests.fixtures.previous_release import OldCode

_ROUNDS = 3


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


class OldProcess:
    """Running process of older code."""

    def __init__(self, requests: IO[str], responses: IO[str]) -> None:
        self._requests = requests
        self._responses = responses

    def start_round(self) -> None:
        """Let it use the catalog once."""
        print(file=self._requests, flush=True)

    def appended(self) -> set[int]:
        """Return the offsets of the records that it appended in a round."""
        runs = json.loads(self._responses.readline())
        return {base + number for base, count in runs for number in range(count)}


@contextmanager
def old_process(code: OldCode, directory: Path, url: str) -> Iterator[OldProcess]:
    """Run older code on a database; it must end without an error."""
    code.extract(directory, "catalog", "core", "tests/__init__.py", "tests/catalog")
    script = Path(__file__).with_name("old_process.py")
    with subprocess.Popen(
        [sys.executable, "-P", str(script), url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield OldProcess(process.stdin, process.stdout)
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize("code", previous_release.available(), ids=lambda code: code.name.replace(" ", "-"))
def test_an_agent_of_older_code_works_before_during_and_after_the_migration(
    code: OldCode, new_catalog_url: Callable[..., str], tmp_path: Path, clock: Clock, ids: Ids
) -> None:
    url = new_catalog_url(empty=True)
    with old_process(code, tmp_path, url) as old:
        offsets: set[int] = set()
        old.start_round()
        offsets |= old.appended()
        old.start_round()
        migrate_catalog(url, clock, ids)  # during a round
        offsets |= old.appended()
        with open_catalog(url, clock, ids) as catalog:
            scene = Scene.set_up(catalog, ids)
            topic = catalog.topics.get("shared")
            checker = InvariantChecker(catalog)
            for _ in range(_ROUNDS):
                old.start_round()
                for _ in range(_ROUNDS):
                    (run,) = scene.commit(topic, run_of(4)).runs
                    assert run.base_offset is not None
                    added = set(range(run.base_offset, run.base_offset + 4))
                    assert not added & offsets
                    offsets |= added
                added = old.appended()
                assert not added & offsets
                offsets |= added
                catalog.sessions.heartbeat(scene.session_id)
                assert checker.violations() == []
            assert offsets == set(range(len(offsets)))
