"""`siltstone users` on a real catalog: passwords come from a prompt, a file or standard input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from click.testing import CliRunner

from catalog.security.scram import ScramMechanism, salted_password, stored_key
from siltstone.cli.main import cli
from tests.end_to_end.processes import as_url

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.open import Catalog


def test_users_are_added_listed_and_deleted(tmp_path: Path, catalog: Catalog, catalog_url: str) -> None:
    where = ["--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url)]

    def users(*arguments: str, code: int = 0, typed: str | None = None) -> str:
        result = CliRunner().invoke(cli, ["users", *arguments, *where], input=typed)
        assert result.exit_code == code, result.output
        assert "secret" not in result.output
        return result.output if code else result.stdout

    def can_log_in(name: str, password: str) -> bool:
        found = catalog.users.lookup(name).for_password()
        salted = salted_password(found.mechanism, password.encode(), found.salt, found.iterations)
        return stored_key(found.mechanism, salted) == found.stored_key

    def report(*arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(users(*arguments, "--json").splitlines()[-1])
        return found

    assert "siltstone users add" in users("list")
    users("add", "ada", typed="prompt secret\nprompt secret\n")
    assert can_log_in("ada", "prompt secret")
    users("add", "ada", typed="one secret\nanother secret\n", code=1)
    assert "--password-file" in users("add", "ada", typed="", code=1)
    file = tmp_path / "password"
    file.write_text("file secret=,ü\n")
    users("add", "ada", "--password-file", str(file))
    assert can_log_in("ada", "file secret=,ü")
    users("add", "a,b=c", "--mechanism", "SCRAM-SHA-256", "--password-file", "-", typed="stdin secret")
    assert can_log_in("a,b=c", "stdin secret")
    assert report("list")["credentials"] == [
        {"user": "a,b=c", "mechanism": "SCRAM-SHA-256", "iterations": 4096},
        *({"user": "ada", "mechanism": each.sasl_name, "iterations": 4096} for each in ScramMechanism),
    ]
    file.write_text("\n")
    assert "is empty" in users("add", "eve", "--password-file", str(file), code=1)
    assert "cannot be read" in users("add", "eve", "--password-file", str(tmp_path / "none"), code=1)
    users("add", "eve", "--password", "secret", code=2)
    users("add", "eve", "--iterations", "1000000", typed="secret\nsecret\n", code=2)
    assert "user ada was not deleted" in users("delete", "ada", typed="n\n", code=1)
    assert "--yes" in users("delete", "ada", typed="", code=1)
    assert "deleted user ada with 2 credentials" in users("delete", "ada", "--yes")
    assert "siltstone users list" in users("delete", "ada", "--yes", code=1)
    unknown = users("delete", "ada", typed="y\n", code=1)
    assert "there is no user 'ada'" in unknown
    assert "Delete user" not in unknown
