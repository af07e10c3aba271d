"""The benchmark of `siltstone compact` runs the command, and measures steps that the product has."""

from __future__ import annotations

import importlib
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.compact_command import Server, Size, measure
from benchmarks.parts.compact_timeline import STEPS
from benchmarks.parts.dedupe_data import Case
from catalog.open import EmbeddedPostgres


@pytest.mark.parametrize("place", [each for places in STEPS.values() for each in places])
def test_every_step_is_a_function_of_the_product(place: str) -> None:
    module, _, path = place.partition(":")
    assert callable(attrgetter(path)(importlib.import_module(module)))


@pytest.mark.spark
@pytest.mark.integration
def test_command_and_watcher_are_measured_with_little_data() -> None:
    size = Size(Case(keys=50, records=100), rounds=1, jobs=1)
    with (
        TemporaryDirectory(prefix="siltstone-") as name,
        EmbeddedPostgres(Path(name) / "catalog") as database,
    ):
        result = measure(Server(database.url, Path(name)), size, ("command", "watcher"))

    command, watcher = (
        {name: each["median"] for name, each in result[part].items()} for part in ("command", "watcher")
    )
    # With so little data, a task may not wait for reads at all.
    measured = {name: seconds for name, seconds in (command | watcher).items() if name != "read_objects"}
    missing = [name for name, seconds in measured.items() if seconds <= 0]
    assert missing == []
    assert command["command"] == pytest.approx(command["outside_jobs"] + command["jobs"], abs=0.001)
    assert command["passes"] < command["jobs"]
    parts = ("plan", "claim", "query", "publish")
    assert sum(watcher[part] for part in parts) <= watcher["overhead"] + 0.001
