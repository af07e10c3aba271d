"""Commands reject an object store that is not bound to the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from object_store.accounting import Purpose, RequestKind
from object_store.errors import ForeignStoreError
from siltstone.cli.main import cli
from siltstone.context import open_context
from siltstone.settings.configuration import Settings
from tests.end_to_end.processes import as_url

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


def settings(tmp_path: Path, catalog_url: str, store: str) -> Settings:
    return Settings.model_validate(
        {"data_dir": tmp_path, "catalog": as_url(catalog_url), "object_store": str(tmp_path / store)}
    )


def test_the_first_command_that_uses_a_store_binds_the_catalog_to_it(
    tmp_path: Path, catalog_url: str
) -> None:
    with open_context(settings(tmp_path, catalog_url, "right"), check_binding=False) as context:
        assert context.catalog.store_binding.recorded() is None
        assert context.store.counts.snapshot().of().requests == 0
    with open_context(settings(tmp_path, catalog_url, "right")) as context:
        home = context.catalog.store_binding.recorded()
        assert home is not None
        assert home.url == context.store.url
    with open_context(settings(tmp_path, catalog_url, "right")) as context:
        made = context.store.counts.snapshot()
        assert made.of().requests == made.of(RequestKind.GET, Purpose.CHECK).requests == 1
        assert context.catalog.store_binding.recorded() == home
    with pytest.raises(ForeignStoreError), open_context(settings(tmp_path, catalog_url, "wrong")):
        pytest.fail("it goes on")


@pytest.mark.parametrize(
    "arguments", [["compact"], ["fsck"], ["agent", "--http", "127.0.0.1:0"]], ids=" ".join
)
def test_a_command_with_the_wrong_store_names_the_right_one(
    tmp_path: Path, catalog_url: str, arguments: list[str]
) -> None:
    with open_context(settings(tmp_path, catalog_url, "right")) as context:
        right = context.store.url
    where = ["--data-dir", str(tmp_path), "--catalog", as_url(catalog_url)]
    result = CliRunner().invoke(cli, [*arguments, *where, "--object-store", str(tmp_path / "wrong")])
    assert f"this catalog's objects are in {right}, and" in result.output
    assert f"give --object-store {right}" in result.output
    assert "delete the records" not in result.output
    assert result.exit_code == 1
    assert not [path for path in (tmp_path / "wrong").rglob("*") if path.is_file()]
    topics = CliRunner().invoke(cli, ["topics", "list", *where, "--object-store", str(tmp_path / "wrong")])
    assert topics.exit_code == 0
