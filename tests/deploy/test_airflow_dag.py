"""The example DAG, with stand-ins for Airflow, which has more dependencies than everything else."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from siltstone.cli.compaction.compact import command

if TYPE_CHECKING:
    from typing import Self

    import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"


class Dag:
    """Stand-in with the parameters of `airflow.DAG`."""

    def __init__(self, **options: object) -> None:
        self.options = options

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_the_dag_submits_an_existing_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments are valid for `siltstone compact`, and its application exists."""
    submitted: list[dict[str, Any]] = []
    for name in (
        "airflow",
        "airflow.sdk",
        "airflow.providers",
        "airflow.providers.apache",
        "airflow.providers.apache.spark",
        "airflow.providers.apache.spark.operators",
        "airflow.providers.apache.spark.operators.spark_submit",
    ):
        module = ModuleType(name)
        module.__dict__.update(DAG=Dag, SparkSubmitOperator=lambda **options: submitted.append(options))
        monkeypatch.setitem(sys.modules, name, module)

    found = runpy.run_path(str(DEPLOY / "airflow" / "siltstone_compaction.py"))

    assert found["dag"].options["dag_id"] == "siltstone_compaction"
    (task,) = submitted
    subcommand, *arguments = task["application_args"]
    assert subcommand == "compact"
    context = command.make_context("compact", list(arguments), resilient_parsing=False)
    assert (context.params["once"], context.params["as_json"]) == (True, True)
    assert set(task["env_vars"]) == {"SILTSTONE_CATALOG", "SILTSTONE_OBJECT_STORE"}
    assert (DEPLOY / "spark_submit.py").is_file()
