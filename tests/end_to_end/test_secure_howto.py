"""`docs/how-to/secure.md` on two agents as processes: users, SASL_SSL, HTTP with TLS, and ACLs.

The settings are those of the page, with other hosts, ports and paths. A producer and a member of a group stay
connected at each step. `tests/agent/kafka/test_secure_migration.py` has the steps with certificates.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import orjson
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.agent.kafka.traffic import Ledger, Traffic
from tests.agent.kafka.waiting import until
from tests.end_to_end.forked_command import ForkedCommand, run_siltstone
from tests.end_to_end.processes import as_url
from tests.fixtures.certificates import Authority
from tests.fixtures.ports import lasting_ports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

pytestmark = pytest.mark.integration
_PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "secure.md"
_SECTIONS: Final = re.compile(r"^## (.+)$", re.MULTILINE)
_TOML: Final = re.compile(r"^ *```toml\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_COMMANDS: Final = re.compile(r"^ *\$ (siltstone .+)$", re.MULTILINE)
_TOPIC: Final = "orders-new"
_DENIED: Final = '"decision": "denied"'
_OPEN: Final = "allow_everyone_if_no_acl_found"


class _Page:
    """The sections of the how-to: their settings and their commands."""

    def __init__(self) -> None:
        parts = _SECTIONS.split(_PAGE.read_text())[1:]
        self._sections = dict(zip(parts[::2], parts[1::2], strict=True))

    def settings(self, section: str) -> dict[str, Any]:
        (block,) = _TOML.findall(self._sections[section])
        return tomllib.loads("\n".join(line.strip() for line in block.splitlines()))

    def kafka_acls(self, section: str) -> list[str]:
        """Return the options after `--add` of the page's `kafka-acls.sh`, which `siltstone acls` has, too."""
        text = self._sections[section].replace("\\\n", " ")
        (found,) = re.findall(r"\$ kafka-acls\.sh .* --add (.+)$", text, re.MULTILINE)
        return shlex.split(found)

    def commands(self, section: str) -> list[list[str]]:
        return [shlex.split(each)[1:] for each in _COMMANDS.findall(self._sections[section])]


class _Agent:
    """An agent that starts again with the settings of each step."""

    def __init__(self, directory: Path, shared: list[str], files: Mapping[str, str]) -> None:
        directory.mkdir()
        self._directory = directory
        self._command = ["agent", "--data-dir", str(directory), *shared]
        ports = lasting_ports(6)
        self._ports = dict(zip(("9092", "9093", "9094", "8080", "8443", "health"), ports, strict=True))
        self._replaced = {"10.0.0.1": "127.0.0.1", "agent-1.example": "127.0.0.1", **files}
        self._process: ForkedCommand | None = None
        self.log = directory / "log"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()

    def address(self, port: str) -> str:
        """Return the address that stands for a port of the page."""
        return f"127.0.0.1:{self._ports[port]}"

    def restart(self, settings: Mapping[str, Any]) -> None:
        """Stop the agent as an operator does, and start it with other settings."""
        lines = [f"{name} = {orjson.dumps(self._here(value)).decode()}\n" for name, value in settings.items()]
        (self._directory / "siltstone.toml").write_text("".join(lines))
        if self._process is not None:
            self._process.stop()
        arguments = [*self._command, "--health", self.address("health")]
        self._process = ForkedCommand(arguments, self._directory / "ready", self.log)
        self._process.await_line()

    def _here(self, value: object) -> object:
        if not isinstance(value, str):
            return value
        for text, other in self._replaced.items():
            value = value.replace(text, other)
        for port, own in self._ports.items():
            value = re.sub(rf":{port}\b", f":{own}", value)
        return value


def _without(listener: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without a Kafka listener, and without what allows insecure ones."""
    found = {name: value for name, value in settings.items() if name != "allow_insecure_listeners"}
    for name in ("listeners", "advertised_listeners"):
        kept = [each for each in found[name].split(",") if not each.startswith(f"{listener}://")]
        found[name] = ",".join(kept)
    return found


class _Installation:
    """Two agents that share a catalog and an object store, and the settings that they have now."""

    def __init__(self, opened: ExitStack, directory: Path, catalog_url: str) -> None:
        self.authority = Authority(directory)
        server, self.operator = self.authority.issue("server", "127.0.0.1"), self.authority.issue("operator")
        self.files = {
            "/etc/siltstone/tls.crt": str(server.certificate),
            "/etc/siltstone/tls.key": str(server.key),
            "/etc/siltstone/clients-ca.crt": str(self.authority.file),
            "/run/secrets": str(directory),
        }
        where = ["--catalog", as_url(catalog_url), "--object-store", str(directory / "objects")]
        self._directory = directory
        self._local = ["--data-dir", str(directory / "operator"), *where]
        self.settings: dict[str, Any] = {}
        self.agents = [
            opened.enter_context(_Agent(directory / name, where, self.files)) for name in ("one", "two")
        ]

    def command(self, *arguments: str, stdin: str = "") -> None:
        """Run a command of the operator."""
        run_siltstone(*arguments, *self._local, directory=self._directory, stdin=stdin)

    def restart(self, settings: Mapping[str, Any], traffic: Traffic | None = None) -> None:
        """Start the agents again with these settings, one at a time; clients continue meanwhile."""
        self.settings = dict(settings)
        for agent in self.agents:
            agent.restart(settings)
            if traffic is not None:
                traffic.continues()

    def client(self, port: str, user: str = "") -> dict[str, Any]:
        """Return the settings of a client, which logs in if it has a user."""
        address = {"bootstrap.servers": ",".join(each.address(port) for each in self.agents)}
        if not user:
            return address
        return {
            **address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.file),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": f"planted-{user}",
        }

    def traffic(self, opened: ExitStack, ledger: Ledger, port: str, *users: str) -> Traffic:
        """Start clients, and wait until they work."""
        producer, consumer = users or ("", "")
        settings = self.client(port, producer), self.client(port, consumer)
        found = Traffic(*settings, _TOPIC, ledger, group="billing")
        opened.callback(found.stop)
        found.continues()
        return found

    def logged(self) -> str:
        """Return the logs of both agents."""
        return "".join(each.log.read_text() for each in self.agents)

    def serves_https(self) -> None:
        """Check that each agent serves clients with a certificate."""
        context = self.operator.context(self.authority)
        for each in self.agents:
            url = f"https://{each.address('8443')}/v1/topics"
            assert httpx.get(url, verify=context, trust_env=False, timeout=240).status_code == 200


def test_an_open_installation_gets_users_and_acls(tmp_path: Path, catalog_url: str) -> None:
    page, ledger, users = _Page(), Ledger(), ("shop", "billing")
    http = {"http_listeners": "LOCAL://127.0.0.1:8080", "listener_security_protocol_map": "LOCAL:PLAINTEXT"}
    with ExitStack() as opened:
        run = _Installation(opened, tmp_path, catalog_url)
        run.restart({**http, "listeners": "PLAINTEXT://10.0.0.1:9092"})
        run.command("topics", "create", _TOPIC, "--partitions", "4")
        old = run.traffic(opened, ledger, "9092")
        for command in page.commands("Let clients log in"):
            _change_users(command, tmp_path, run)
        logins = {**page.settings("Add a listener with TLS"), **page.settings("Let clients log in")}
        run.restart({**http, **logins}, old)
        new = run.traffic(opened, ledger, "9094", *users)
        old.stop()
        new.continues()
        run.restart({**_without("PLAINTEXT", run.settings), **page.settings("HTTP")}, new)
        run.serves_https()
        run.restart({**run.settings, **page.settings("Turn on authorization")}, new)
        *additions, removal = page.commands("Turn on authorization")
        for command in (*additions, ["acls", "add", *page.kafka_acls("Turn on authorization")]):
            run.command(*command)
        run.command(*removal, stdin="y\n")
        new.continues()
        assert _DENIED not in run.logged(), "no client was refused meanwhile"
        final = {name: value for name, value in run.settings.items() if name != _OPEN}
        run.restart(final, new)
        _check_rights(run)
        new.stop()
        assert (old.failures, new.failures) == ([], [])
        run.traffic(opened, ledger, "9094", *users)
        until(ledger.is_read)


def _check_rights(run: _Installation) -> None:
    """The administrator may do everything, others what the ACLs allow, and the log has refusals."""
    for user in ("shop", "admin"):
        admin = AdminClient(run.client("9094", user))  # it ends its calls when it is collected
        (created,) = admin.create_topics([NewTopic("slate", 1, 1)]).values()
        refusal = created.exception(240)
        assert (refusal is None) == (user == "admin"), refusal
    assert "TOPIC_AUTHORIZATION_FAILED" in _refusal(run.client("9094", "billing"))
    until(lambda: _DENIED in run.logged())
    metrics = f"http://{run.agents[0].address('8080')}/metrics"
    response = httpx.get(metrics, trust_env=False, timeout=240)
    assert response.status_code == 403, "Prometheus needs Describe on the cluster from now on"


def _change_users(command: list[str], directory: Path, run: _Installation) -> None:
    """Run a command of the page; passwords come from a prompt or from files."""
    user = command[2] if command[1] == "add" else ""
    if user:
        (directory / user).write_text(f"planted-{user}")
    given = [each.replace("/run/secrets", run.files["/run/secrets"]) for each in command]
    if user and "--password-file" not in command:
        given += ["--password-file", "-"]  # a prompt needs a terminal
    run.command(*given, stdin=f"planted-{user}")


def _refusal(settings: Mapping[str, Any]) -> str:
    """Return the name of the error with which a record is refused."""
    failures: list[str] = []

    def delivered(error: Any, _: object) -> None:  # noqa: ANN401  # of confluent_kafka
        failures.append(error.name() if error else "none")

    producer = Producer(dict(settings))
    producer.produce(_TOPIC, value=b"x", on_delivery=delivered)
    assert producer.flush(240) == 0
    return failures[0]
