"""`siltstone quotas` on a real catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from click.testing import CliRunner

from siltstone.cli.main import cli
from tests.end_to_end.processes import as_url

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.open import Catalog


def test_quotas_are_set_listed_and_removed(tmp_path: Path, catalog: Catalog, catalog_url: str) -> None:
    where = ["--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url)]

    def quotas(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(cli, ["quotas", *arguments, *where])
        assert result.exit_code == code, result.output
        return result.output if code else result.stdout

    def report(*arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(quotas(*arguments, "--json").splitlines()[-1])
        return found

    assert "siltstone quotas set" in quotas("list")
    quotas("set", "--user", "ada", "--client-id-default", "producer_byte_rate=1e6", "request_percentage=50")
    quotas("set", "--ip-default", "connection_creation_rate=5")
    assert report("list")["quotas"] == [
        {
            "entity": {"user": "ada", "client-id": None},
            "quotas": {"producer_byte_rate": 1e6, "request_percentage": 50},
        },
        {"entity": {"ip": None}, "quotas": {"connection_creation_rate": 5}},
    ]
    listed = quotas("list")
    assert "default ip" in listed
    assert "producer_byte_rate" in listed
    assert "1,000,000" in listed
    assert "request_percentage=12.5" in quotas("set", "--user", "eve", "request_percentage=12.5")
    quotas("remove", "--user", "eve")
    quotas("remove", "--user", "ada", "--client-id-default", "request_percentage")
    assert report("remove", "--user", "ada", "--client-id-default")["removed"] == ["producer_byte_rate"]
    assert "no such quota" in quotas("remove", "--user", "ada", "--client-id-default", code=1)
    assert "is empty" in quotas("set", "producer_byte_rate=1", code=1)
    assert "not QUOTA=VALUE" in quotas("set", "--user", "ada", "producer_byte_rate", code=1)
    assert "cannot have a quota" in quotas("set", "--ip", "10.0.0.1", "producer_byte_rate=1", code=1)
    assert [str(each) for each in catalog.client_quotas.list()] == ["default ip"]
