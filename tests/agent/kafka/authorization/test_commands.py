"""`siltstone consume` needs rights of a group only if it reads as a member of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

from siltstone.cli.main import cli
from tests.agent.kafka.authorization.principals import allow, refresh

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.agent.kafka.brokers import BrokerThread


def test_a_reader_without_a_group_needs_no_right_of_a_group(
    secured: BrokerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.cli.options.configure_logs", lambda _: None)
    secured.create_topic("lines")
    secured.catalog.acls.add(allow("dora", "Read Topic lines", "Write Topic lines"))
    refresh(secured)
    where = ["-b", secured.address, "-X", "client.id=dora", "--data-dir", str(tmp_path)]
    produced = CliRunner().invoke(cli, ["produce", "lines", *where], input=b"one\n")
    assert produced.exit_code == 0, produced.output
    consumed = CliRunner().invoke(cli, ["consume", "lines", "--format", "value", *where])
    assert (consumed.exit_code, consumed.stdout) == (0, "one\n"), consumed.output
    member = CliRunner().invoke(cli, ["consume", "lines", "--group", "members", *where])
    assert member.exit_code == 1
    assert "GROUP_AUTHORIZATION_FAILED" in member.output
