"""`siltstone check-store`: its table, its exit code, and its JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest
from click.testing import CliRunner

from object_store.trial import TrialResult
from siltstone.cli.main import cli
from siltstone.cli.operations import check_store

if TYPE_CHECKING:
    from pathlib import Path

_WORKS = TrialResult(operation="read ranges", permissions=("s3:GetObject",))
_FAILS = TrialResult(operation="list objects", permissions=("s3:ListBucket",), problem="it lists late")
_LIMITED = TrialResult(operation="find uploads", permissions=("s3:Put",), limitation="it lists none")


def test_a_directory_does_all_that_is_needed(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["check-store", "--object-store", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "✓ the object store does all that Siltstone needs" in done.output
    assert "✗" not in done.output

    done = CliRunner().invoke(cli, ["check-store", "--object-store", str(tmp_path), "--json"])
    operations = orjson.loads(done.output)["operations"]
    assert {(each["problem"], each["limitation"]) for each in operations} == {(None, None)}


@pytest.mark.parametrize(
    ("results", "exit_code", "expected"),
    [
        ([_WORKS, _LIMITED], 0, "! find uploads: it lists none\n✓ the object store does all"),
        ([_WORKS, _LIMITED, _FAILS], 1, "✗ list objects: it lists late\n✗ 1 operation of 3 failed"),
    ],
)
def test_only_what_is_needed_decides_about_the_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    results: list[TrialResult],
    exit_code: int,
    expected: str,
) -> None:
    monkeypatch.setattr(check_store, "try_store", lambda *_arguments, **_options: results)
    done = CliRunner().invoke(cli, ["check-store", "--object-store", str(tmp_path)])
    assert (done.exit_code, expected in done.output) == (exit_code, True), done.output
