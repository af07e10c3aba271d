"""Workloads in TOML."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.errors import InvalidInputError, NotFoundError, SiltstoneError
from cost_model.workload.definition import load_workload, named_workloads, parse_workload

if TYPE_CHECKING:
    from pathlib import Path


def test_built_in_workloads_can_be_loaded() -> None:
    """`platform` has the documented size."""
    assert {"changelog", "clickstream", "platform"} <= set(named_workloads())
    for name in named_workloads():
        assert load_workload(name).name == name
    platform = load_workload("platform")
    assert (platform.partition_count, platform.agents, platform.days) == (100_000, 200, 365)


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("agent = 3", "no key 'agent'", "did you mean agents?"),
        ("[[topics]]\nname = 'a'\npartition = 3", "topics[0]: there is no key 'partition'", "partitions?"),
        ("[[topics]]\npartitions = 3", "topics[0]: name is missing", "give name"),
        ("agents = 'many'", "agents is 'many'", "give a whole number"),
        ("days = nan", "days is nan", "give a number"),
        ("zone_aware = 1", "zone_aware is 1", "true or false"),
        ("topics = 3", "topics is not a list", "[[topics]]"),
        ("agents = 3", "has no topics", "[[topics]]"),
        ("agents = 2\n[[topics]]\nname = 'a'", "2 agents in 3 zones", "fewer zones"),
        ("[[topics]]\nname = 'a'\nkey_distribution = 'normal'", "'normal'", "uniform, zipf"),
        ("[[topics]]\nname = 'a'\nupdate_ratio = 2", "update_ratio is 2", "0 to 1"),
        ("[[topics]]\nname = 'a'\nconfig = {'retention.ms' = 3}", "config is", "table of strings"),
        ("[[topics]]\nname = 'a'\nconfig = {'retention.m' = '3'}", "'retention.m'", "retention.ms"),
        ("agents = ", "not TOML", "docs/explanation/cost.md"),
    ],
)
def test_invalid_workloads_are_rejected_with_a_remedy(text: str, message: str, remedy: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_workload(text, "mine.toml")
    assert message in caught.value.message
    assert remedy in str(caught.value.remedy)


def test_an_unknown_workload_or_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="did you mean platform"):
        load_workload("platforms")
    with pytest.raises(SiltstoneError, match=r"absent\.toml cannot be read"):
        load_workload("", tmp_path / "absent.toml")
