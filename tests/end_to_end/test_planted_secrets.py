"""A full run with real processes, whose secrets are then searched in everything that it wrote.

An agent, a compaction on Spark and commands run with all kinds of secrets, at log level debug. Clients log in
with right and wrong passwords and tokens, over Kafka and HTTP, and processes start with wrong settings. The
pages of Spark's UI are made from the events in its event log.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import orjson
import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from psycopg import sql

from tests.agent.kafka.waiting import until
from tests.agent.security.token_issuer import AUDIENCE, ISSUER, Issuer, KeyServer
from tests.end_to_end.processes import TIMEOUT_SECONDS, as_url, environment
from tests.end_to_end.secret_search import MARKER, ProcessWatch, planted, secrets_below, secrets_in
from tests.fixtures.certificates import Authority
from tests.fixtures.s3 import REGION, bucket_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from object_store.open import StoreConfig
    from tests.fixtures.s3 import S3Server

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="environments are read from /proc"),
]
_TOPIC = "planes"
_STORE_SECRETS = {name: planted(name.lower()) for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")}
_PASSWORD = planted("password")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class _Installation:
    """Files that an operator wrote, below `given`, and everything that processes write, below `written`."""

    def __init__(self, directory: Path, catalog: str, store: StoreConfig, keys: str) -> None:
        self.given, self.written = directory / "given", directory / "written"
        self.data_dir = self.written / "data"
        for each in (self.given, self.written, self.data_dir, self.written / "tmp", self.written / "events"):
            each.mkdir()
        self.authority = Authority(self.given)
        issued = self.authority.issue("agent", "127.0.0.1", password=planted("key").encode())
        password_of_key = self._file("key-password", planted("key"))
        self.settings = {
            "data_dir": str(self.data_dir),
            "log_level": "debug",
            "catalog": catalog,
            "catalog_listen_url": catalog,
            "object_store": store.url,
            "s3_endpoint": store.endpoint or "",
            "s3_region": REGION,
            "listeners": "SASL_SSL://127.0.0.1:0,OTHER://127.0.0.1:0",
            "listener_security_protocol_map": "WEB:SSL,OTHER:SASL_PLAINTEXT",
            "sasl_enabled_mechanisms": ",".join((*_MECHANISMS, "OAUTHBEARER")),
            "http_listeners": "WEB://127.0.0.1:0",
            "health": "127.0.0.1:0",
            "http_authentication": "basic,bearer",
            "ssl_certificate_location": str(issued.certificate),
            "ssl_key_location": str(issued.key),
            "ssl_key_password_file": password_of_key,
            "sasl_oauthbearer_jwks_endpoint_url": keys,
            "sasl_oauthbearer_expected_issuer": ISSUER,
            "sasl_oauthbearer_expected_audience": AUDIENCE,
            "connection_failed_authentication_delay_ms": "1",
            "authorizer_enable": "true",
            "super_users": "User:ada",
            "spark_master": "local[1]",
        }
        self.config = self._toml("siltstone.toml", self.settings)
        self.password = self._file("password", _PASSWORD)
        spark = self.given / "spark"
        spark.mkdir()
        events = {"enabled": "true", "compress": "false", "dir": (self.written / "events").as_uri()}
        (spark / "spark-defaults.conf").write_text(
            "".join(f"spark.eventLog.{name} {value}\n" for name, value in events.items())
        )
        temporary = {"TMPDIR": str(self.written / "tmp"), "SPARK_CONF_DIR": str(spark)}
        self.environment = {**environment(), **_STORE_SECRETS, **temporary}

    def _file(self, name: str, text: str) -> str:
        (self.given / name).write_text(f"{text}\n")
        return str(self.given / name)

    def _toml(self, name: str, settings: Mapping[str, str]) -> str:
        return self._file(
            name, "".join(f"{key} = {orjson.dumps(each).decode()}\n" for key, each in settings.items())
        )

    def properties(self, password: str = _PASSWORD) -> str:
        """Write credentials for commands that are Kafka clients."""
        properties = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.authority.file,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "ada",
            "sasl.password": password,
        }
        name = f"client-{len(list(self.given.iterdir()))}.properties"
        return self._file(name, "".join(f"{key}={each}\n" for key, each in properties.items()))

    def with_changes(self, **changes: str) -> str:
        """Write changed settings."""
        return self._toml(f"wrong-{len(list(self.given.iterdir()))}.toml", {**self.settings, **changes})

    def start(self, name: str, *arguments: str, config: str = "") -> _Command:
        """Start a command whose output is in a file."""
        output = self.written / f"{name}.out"
        with output.open("wb") as out, output.with_suffix(".err").open("wb") as error:
            process = subprocess.Popen(
                [sys.executable, "-m", "siltstone", *arguments, "--config", config or self.config],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=error,
                env=self.environment,
            )
        return _Command(process, output)


class _Command:
    """A running command."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    def output(self) -> str:
        return self._output.read_text() + self._output.with_suffix(".err").read_text()

    def ends(self, code: int = 0, text: str = "") -> None:
        """Send input, and wait for the end, with an exit code."""
        self.process.communicate(text.encode() or None, timeout=TIMEOUT_SECONDS)
        assert self.process.returncode == code, self.output()

    def ready(self) -> dict[str, Any]:
        """Wait until an agent serves, and return its addresses."""
        until(lambda: self.process.poll() is not None or self._output.read_bytes().endswith(b"\n"))
        assert self.process.poll() is None, self.output()
        found: dict[str, Any] = orjson.loads(self._output.read_bytes().splitlines()[0])
        return found


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def installation(
    catalog_url: str, s3_config: StoreConfig, issuer: Issuer, tmp_path: Path
) -> Iterator[_Installation]:
    keys = KeyServer(issuer)
    catalog = as_url(catalog_url).replace("@", f":{quote(planted('p@ss/catalog'), safe='')}@", 1)
    yield _Installation(tmp_path, catalog, s3_config, f"{keys.url}?token={planted('jwks')}")
    keys.close()


def test_a_full_run_writes_no_planted_secret(
    installation: _Installation, catalog_url: str, s3_config: StoreConfig, s3_server: S3Server, issuer: Issuer
) -> None:
    run = installation
    with ExitStack() as stack:
        watch = stack.enter_context(ProcessWatch(run.written / "tmp", _STORE_SECRETS))
        agent = run.start("agent", "agent")
        stack.callback(agent.process.kill)
        run.start("user", "users", "add", "ada", "--password-file", run.password).ends()
        ready = agent.ready()
        responses = _use_http(run, f"https://{ready['http']}", issuer)
        for mechanism in (*_MECHANISMS, "OAUTHBEARER"):
            _log_in(run, ready["kafka"], mechanism, issuer)
        started = [(run.start("compact", "compact", "--once", "--force", "--json"), 0)]
        started += _start_with_wrong_settings(run)
        client = ("-b", ready["kafka"], "-F")
        produced = run.start("produce", "produce", _TOPIC, *client, run.properties(), "--key-separator", ":")
        refused = run.start("refused", "produce", _TOPIC, *client, run.properties(planted("refused")))
        started.append((run.start("consume", "consume", _TOPIC, *client, run.properties()), 0))
        produced.ends(0, text="a:1\nb:2\na:3\n")
        refused.ends(75, text="a:1\n")
        for each, code in started:
            each.ends(code)
        agent.process.terminate()
        agent.ends()
    _check_that_the_run_was_complete(run, watch, responses)
    assert watch.found == set()
    assert secrets_below(run.written) == {}
    assert [each for each in responses if secrets_in(each)] == []
    assert [each for each in _dump(catalog_url) if secrets_in(each)] == []
    assert [each for each in _objects(s3_server, s3_config) if secrets_in(each)] == []


def _check_that_the_run_was_complete(run: _Installation, watch: ProcessWatch, responses: list[str]) -> None:
    """Check that what is searched has been written, and that the search finds secrets in files."""
    given = secrets_below(run.given)
    assert {Path(each).name for each in given} >= {"siltstone.toml", "key-password", "password"}
    log = (run.written / "agent.err").read_text()
    assert '"level": "debug"' in log
    assert "a client failed to authenticate" in log
    assert "siltstone_authentications_total" in "".join(responses)
    assert '"jobs_completed":1' in (run.written / "compact.out").read_text().replace(" ", "")
    events = b"".join(path.read_bytes() for path in (run.written / "events").rglob("*") if path.is_file())
    assert b"SparkListenerEnvironmentUpdate" in events
    assert b"SparkListenerSQLExecutionStart" in events
    for part in ("siltstone agent", "siltstone compact", "org.apache.spark.deploy.SparkSubmit"):
        assert any(part in command for command in watch.commands), part


def _credentials(run: _Installation, mechanism: str, password: str, issuer: Issuer) -> dict[str, Any]:
    common = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(run.authority.file),
        "sasl.mechanism": mechanism,
    }
    if mechanism != "OAUTHBEARER":
        return {**common, "sasl.username": "ada", "sasl.password": password}
    claims = issuer.claims()
    token = issuer.token(jti=password, aud=AUDIENCE if password == _PASSWORD else "another service")
    return {**common, "oauth_cb": lambda _: (token, float(claims["exp"]))}


def _log_in(run: _Installation, address: str, mechanism: str, issuer: Issuer) -> None:
    """Log in, produce and consume; then fail to log in."""
    right = {"bootstrap.servers": address, **_credentials(run, mechanism, _PASSWORD, issuer)}
    producer = Producer(right)
    producer.produce(_TOPIC, b"value", b"key")
    assert producer.flush(120) == 0
    consumer = Consumer({**right, "group.id": "readers"})
    consumer.assign([TopicPartition(_TOPIC, 0, 0)])
    found = consumer.poll(120)
    consumer.close()
    assert found is not None
    assert found.error() is None
    errors: list[KafkaError] = []
    wrong = _credentials(run, mechanism, planted("wrong-password"), issuer)
    refused = Consumer({"bootstrap.servers": address, "group.id": "x", **wrong, "error_cb": errors.append})

    def is_refused() -> bool:
        with pytest.raises(KafkaException):
            refused.list_topics(timeout=0.1)
        refused.poll(0)
        return any(each.code() == KafkaError._AUTHENTICATION for each in errors)

    until(is_refused)
    refused.close()


def _use_http(run: _Installation, url: str, issuer: Issuer) -> list[str]:
    """Send requests with right, wrong and malformed credentials, and return all responses."""
    unsigned = issuer.unsigned(jti=planted("unsigned"))
    received = []
    with httpx.Client(
        base_url=url, verify=run.authority.context(), trust_env=False, timeout=TIMEOUT_SECONDS
    ) as client:

        def ask(method: str, path: str, *, code: int, **how: Any) -> None:  # noqa: ANN401  # httpx's arguments
            response = client.request(method, path, **how)
            assert response.status_code == code, response.text
            received.append(f"{response.headers} {response.text}")

        right = ("ada", _PASSWORD)
        until(lambda: client.get("/v1/topics", auth=right).status_code == 200)
        topic = {"name": _TOPIC, "partitions": 1, "config": {"cleanup.policy": "compact"}}
        ask("POST", "/v1/topics", code=201, json=topic, auth=right)
        token = issuer.token(jti=planted("token"))
        ask("GET", "/v1/topics", code=200, headers={"Authorization": f"Bearer {token}"})
        for value in (unsigned, issuer.token(jti=planted("late"), exp=1), planted("no-token")):
            ask("GET", "/v1/topics", code=401, headers={"Authorization": f"Bearer {value}"})
        for value in (f"Basic {planted('no-base64')}", planted("no-scheme")):
            ask("GET", "/v1/topics", code=401, headers={"Authorization": value})
        ask("GET", "/metrics", code=401, auth=("ada", planted("wrong-basic")))
        ask("GET", "/v1/topics", code=401, auth=("eve", planted("stranger")))
        ask("GET", "/metrics", code=200, auth=right)
    return received


def _start_with_wrong_settings(run: _Installation) -> Iterator[tuple[_Command, int]]:
    """Start commands that fail, and return their exit codes."""
    broken = run.given / "broken.toml"
    broken.write_text(f'catalog = "postgresql://me:{planted("broken")}@host/db\n')
    unescaped = f"postgresql://me:{planted('p@ss')}/w@127.0.0.1:5432/logs"
    other_key = run.given / "other-password"
    other_key.write_text(planted("other-key"))
    store = f"s3://key:{planted('store')}@bucket/prefix"
    user = f"https://me:{planted('user')}@127.0.0.1/jwks"
    cases = {
        "agent": (run.with_changes(catalog=unescaped), 2),
        "agent ": (run.with_changes(ssl_key_password_file=str(other_key)), 1),
        "agent  ": (run.with_changes(sasl_oauthbearer_jwks_endpoint_url=user), 1),
        "migrate": (run.with_changes(object_store=store, passwort=planted("unknown")), 2),
        "migrate ": (str(broken), 2),
    }
    for name, (config, code) in cases.items():
        started = run.start(f"wrong-{name.replace(' ', '-')}", name.strip(), "--debug", config=config)
        yield started, code


def _dump(catalog_url: str) -> Iterator[bytes]:
    """Return all rows of the catalog, what its server shows of connections, and the server's log."""
    with psycopg.connect(catalog_url) as connection:
        tables = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = 'siltstone'"
        ).fetchall()
        assert tables
        for name in (*tables, ("pg_catalog", "pg_stat_activity"), ("pg_catalog", "pg_settings")):
            statement = sql.SQL("COPY (SELECT * FROM {}) TO STDOUT").format(sql.Identifier(*name))
            with connection.cursor().copy(statement) as rows:
                yield b"".join(rows)
        (directory,) = connection.execute("SHOW data_directory").fetchone() or ("",)
    log = Path(directory).parent / "server.log"
    with suppress(FileNotFoundError):
        yield log.read_bytes()


def _objects(server: S3Server, store: StoreConfig) -> Iterator[bytes]:
    """Return all objects of the store."""
    client = server.client()
    bucket = bucket_of(store)
    keys = [each["Key"] for each in client.list_objects_v2(Bucket=bucket).get("Contents", [])]
    assert keys
    for key in keys:
        yield key.encode() + client.get_object(Bucket=bucket, Key=key)["Body"].read()
    client.close()


def test_the_search_finds_secrets_wherever_they_are(tmp_path: Path) -> None:
    """Otherwise the other test would prove nothing."""
    secret = planted("canary")
    command = [sys.executable, "-c", "input()", secret]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, env={**os.environ, "CANARY": secret, "GIVEN": secret}
    ):
        (tmp_path / "file").write_text(f"a line\n{secret}\n")
        watch = ProcessWatch(tmp_path, ["GIVEN"])
        watch.scan()
    shown = "\n".join(watch.found)
    assert "arguments: " in shown
    assert "CANARY" in shown
    assert "GIVEN" not in shown
    assert str(tmp_path / "file") in shown
    assert MARKER in shown
