"""`siltstone acls` on a real catalog, with the vocabulary of `kafka-acls.sh`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from click.testing import CliRunner

from catalog.security.acl_bindings import (
    CLUSTER_NAME,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from siltstone.cli.main import cli
from tests.end_to_end.processes import as_url

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.open import Catalog

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_LITERAL, _PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
_ALLOW, _DENY = Permission.ALLOW, Permission.DENY
_ALICE, _BOB = "User:CN=alice,O=Example", "User:bob"


def test_acls_are_added_listed_and_removed(tmp_path: Path, catalog: Catalog, catalog_url: str) -> None:
    where = ["--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url)]

    def acls(*arguments: str, code: int = 0, typed: str | None = None) -> str:
        result = CliRunner().invoke(cli, ["acls", *arguments, *where], input=typed)
        assert result.exit_code == code, result.output
        return result.output

    def report(*arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(acls(*arguments, "--json").splitlines()[-1])
        return found

    def stored() -> set[AclBinding]:
        found = catalog.acls.load()
        assert found is not None
        return {*found.bindings}

    assert "no ACL matches; add one: siltstone acls add" in acls("list")
    assert "no ACL matches; see: siltstone acls list" in acls("remove", "--topic", "t")
    reading = ("--topic", "or", "--group", "or", "--resource-pattern-type", "prefixed", "--operation", "read")
    acls("add", *reading, "--allow-principal", _ALICE, "--allow-host", "10.0.0.1")
    denying = ("--cluster", "--deny-principal", _BOB, "--operation", "AlterConfigs")
    assert "added 1 ACL\n" in acls("add", *denying)
    assert "added 0 ACLs; 1 ACL existed already" in acls("add", *denying)
    assert stored() == {
        AclBinding(_TOPIC, _PREFIXED, "or", _ALICE, "10.0.0.1", Operation.READ, _ALLOW),
        AclBinding(_GROUP, _PREFIXED, "or", _ALICE, "10.0.0.1", Operation.READ, _ALLOW),
        AclBinding(_CLUSTER, _LITERAL, CLUSTER_NAME, _BOB, "*", Operation.ALTER_CONFIGS, _DENY),
    }
    assert _ALICE in acls("list", "--topic", "orders", "--resource-pattern-type", "match")
    (listed,) = report("list", "--deny-principal", _BOB)["acls"]
    assert listed == {
        "resource_type": "Cluster",
        "pattern_type": "Literal",
        "resource_name": CLUSTER_NAME,
        "permission": "Deny",
        "principal": _BOB,
        "host": "*",
        "operation": "AlterConfigs",
    }
    assert "no ACL was removed" in acls("remove", "--group", "or", code=1, typed="n\n")
    assert "[y/N]: \nerror: standard input has no response" in acls(
        "remove", "--group", "or", code=1, typed=""
    )
    assert len(stored()) == 3
    assert len(report("remove", "--group", "or", "--yes")["removed"]) == 1
    assert len(report("remove", "--yes")["removed"]) == 2
    assert stored() == set()
    assert "needs a resource and a principal" in acls("add", "--topic", "t", code=1)
    assert "is not a principal" in acls("add", "--topic", "t", "--allow-principal", "alice", code=1)
