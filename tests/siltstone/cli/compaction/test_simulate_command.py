"""`siltstone simulate` from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
from click.testing import CliRunner, Result

from core.clock import SystemClock
from cost_model.report.figures import CURVES, FIGURES
from siltstone.cli.compaction.simulation_report import sparkline
from siltstone.cli.main import cli
from tests.catalog.scene import Scene, run_of
from tests.end_to_end.processes import as_url

if TYPE_CHECKING:
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids

_SMALL = """
days = 0.05
planning_seconds = 120
agents = 1
zones = 1
flush_interval_ms = 60000
[[topics]]
name = "a"
partitions = 2
mb_per_second = 0.01
keys = 50
config = {"cleanup.policy" = "compact"}
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "110")
    file = tmp_path / "small.toml"
    file.write_text(_SMALL)
    return str(file)


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", *arguments])


@pytest.fixture
def clock() -> Clock:
    """The clock of the command, because its workload is what was committed in the last day."""
    return SystemClock()


@pytest.mark.parametrize("how", [[], ["--exact"]])
def test_policies_are_compared_side_by_side(small: str, tmp_path: Path, how: list[str]) -> None:
    """There is a column for the current settings, for each file and for each --set."""
    (tmp_path / "thrifty.toml").write_text("dead_share = 0.9\ntarget_file_bytes = '64MiB'\n")
    policies = ["--policy", str(tmp_path / "thrifty.toml"), "--set", "merge_fan_in=2,force=true"]
    result = simulate(small, *policies, "--json", *how)
    assert result.exit_code == 0, result.output
    report = orjson.loads(result.stdout)
    assert [each["policy"] for each in report["policies"]] == [
        "current",
        "thrifty",
        "merge_fan_in=2,force=true",
    ]
    for each in report["policies"]:
        assert set(each["figures"]) == {figure.name for figure in FIGURES}
        assert set(each["series"]) == {curve.name for curve in CURVES}
        assert {len(values) for values in each["series"].values()} == {len(each["days_of_samples"])}
        assert len(each["dollars_per_month"]) == 4
        assert each["figures"]["write_amplification"] > 1
    people = simulate(small, *policies, *how)
    assert people.exit_code == 0, people.output
    for text in ("thrifty", "catalog rows", "Kafka, three zones", "GET for consumers", "aws.amazon.com"):
        assert text in people.stdout


def test_curves_are_drawn_into_a_png(small: str, tmp_path: Path) -> None:
    """The file is a PNG of a plausible size."""
    picture = tmp_path / "curves.png"
    result = simulate(small, "--plot", str(picture), "--json")
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert picture.stat().st_size > 10_000


def test_the_report_is_printed_although_its_picture_cannot_be_written(small: str, tmp_path: Path) -> None:
    lost = simulate(small, "--plot", str(tmp_path / "nowhere" / "curves.png"), "--json")
    assert (lost.exit_code, "cannot be written" in lost.stderr) == (1, True)
    assert orjson.loads(lost.stdout.splitlines()[-1])["policies"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "or give --live"),
        (["trial", "--live"], "or give --live"),
        (["trail"], "did you mean trial?"),
        (["absent.toml"], "absent.toml cannot be read"),
        (["trial", "--set", "merge_fan=3"], "did you mean merge_fan_in?"),
        (["trial", "--set", "merge_fan_in"], "has no value"),
        (["trial", "--set", "merge_fan_in=few"], "merge_fan_in cannot be 'few'"),
        (["trial", "--set", "merge_fan_in=1"], "merge_fan_in is 1"),
        (["trial", "--policy", "absent.toml"], "policy file absent.toml cannot be read"),
        (["trial", "--prices", "absent.toml"], "price file absent.toml cannot be read"),
        (["platform", "--exact"], "leave out --exact"),
    ],
)
def test_invalid_input_of_a_simulation_is_an_error(small: str, arguments: list[str], text: str) -> None:
    """The message has a remedy."""
    assert Path(small).exists()
    result = simulate(*arguments)
    assert result.exit_code == 1
    assert text in result.stderr


def test_a_workload_is_derived_from_a_live_catalog(
    small: str, tmp_path: Path, catalog: Catalog, catalog_url: str, ids: Ids
) -> None:
    """Rates and sizes are derived from the commits of the last day. Their records may be old."""
    assert Path(small).exists()
    where = ["--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url)]
    empty = simulate("--live", "--json", *where)
    assert empty.exit_code == 1
    assert "no topic of the catalog received records" in empty.stderr
    scene = Scene.set_up(catalog, ids)
    topic = scene.topic("a", cleanup_policy="compact")
    for _ in range(3):
        scene.commit(topic, run_of(100, at=1_357_000_000_000))
    result = simulate("--live", "--days", "0.1", "--json", *where)
    assert result.exit_code == 0, result.output
    report = orjson.loads(result.stdout)
    assert report["workload"] == "live"


def test_a_sparkline_shows_a_curve() -> None:
    """Its highest point is a full block, and no peak is lost between columns."""
    assert sparkline([0, 1, 2, 4], 4) == "▁▃▅█"
    assert sparkline([0.0] * 5, 3) == "▁▁▁"
    assert sparkline([0, 0, 9, 0], 2) == "▁█"
