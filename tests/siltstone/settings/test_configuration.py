from __future__ import annotations

from pathlib import Path

import pytest

from agent.listeners import HttpAuthentication, HttpListener, KafkaListener
from core.addresses import is_loopback, split_address
from siltstone.settings.configuration import ENVIRONMENT_PREFIX, SETTINGS, Settings
from siltstone.settings.reference import PAGE, update
from siltstone.settings.sources import ConfigurationError, load_settings


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(f"{ENVIRONMENT_PREFIX}{name.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_later_sources_override_earlier_ones_setting_by_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(
        tmp_path / "d" / "siltstone.toml",
        'http = "127.0.0.1:1"\nflush_interval_ms = 1\nspark_master = "local[1]"\ns3_region = "here"\n',
    )
    monkeypatch.setenv("SILTSTONE_HTTP", "127.0.0.1:2")
    monkeypatch.setenv("SILTSTONE_FLUSH_INTERVAL_MS", "2")
    settings = load_settings({"data_dir": str(tmp_path / "d"), "http": "127.0.0.1:3", "s3_region": None})
    assert settings.http == "127.0.0.1:3"
    assert settings.agent.flush_interval_ms == 2
    assert settings.spark_master == "local[1]"
    assert settings.s3_region == "here"


def test_a_named_file_is_read_instead_of_the_one_in_the_data_directory(tmp_path: Path) -> None:
    _write(tmp_path / "siltstone-data" / "siltstone.toml", "grace_seconds = 1\n")
    named = _write(tmp_path / "other.toml", f'data_dir = "{tmp_path}/elsewhere"\n')
    settings = load_settings({}, named)
    assert settings.grace_seconds == 60
    assert settings.data_dir == tmp_path / "elsewhere"
    assert settings.object_store_url == f"{tmp_path}/elsewhere/objects"


def test_sizes_may_have_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILTSTONE_FLUSH_BYTES", "2MiB")
    assert load_settings({}).agent.flush_bytes == 2 * 1024 * 1024


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"http": "nowhere"}, ["setting http", "--http", "HOST:PORT"]),
        ({"http": "127.0.0.1:99999"}, ["99999", "0 (any free one) to 65535"]),
        ({"http": "::1:80"}, ["brackets"]),
        ({"object_store": "gs://bucket"}, ["object_store", "--object-store", "gs://", "s3://bucket/prefix"]),
        ({"object_store": "s3:///prefix"}, ["names no bucket"]),
        ({"object_store": "s3:/bucket"}, ["object_store", "two slashes", "s3://bucket/prefix"]),
        ({"object_store": "s3:bucket"}, ["two slashes"]),
        ({"object_store": "gs:/bucket"}, ["gs:// is not supported"]),
        ({"object_store": "file:/objects"}, ["two slashes"]),
        ({"object_store": ""}, ["it is empty"]),
        ({"data_dir": ""}, ["data_dir", "it is empty"]),
        ({"s3_endpoint": "localhost:9000"}, ["s3_endpoint", "not a URL"]),
        ({"flush_interval_ms": "soon"}, ["flush_interval_ms", "integer"]),
        ({"flush_bytes": "-3"}, ["setting flush_bytes", "not a size", "8MiB"]),
        ({"flush_bytes": "0"}, ["setting flush_bytes", "at least 1B"]),
        ({"flush_bytes": "8 elephants"}, ["setting flush_bytes", "not a size", "8MiB"]),
        ({"flush_bytes": "2GiB"}, ["flush_bytes", "at most 1.0GiB"]),
        ({"grace_seconds": -1}, ["grace_seconds", "at least 0"]),
        ({"fence_confirm_ms": 19_999}, ["fence_confirm_ms", "at least 20000"]),
        ({"s3_endpoint": "http://h:9000"}, ["setting s3_endpoint", "--s3-endpoint", "s3://bucket/prefix"]),
        ({"log_level": "loud"}, ["log_level", "debug, info, warning, error"]),
    ],
)
def test_a_wrong_setting_is_named_with_its_source_and_rule(
    options: dict[str, object], parts: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(options)
    for part in parts:
        assert part in str(caught.value)


def test_a_directory_with_a_colon_in_its_name_is_not_a_url() -> None:
    for path in ("./s3:/bucket", "/objects/a:b", "10:30"):
        assert load_settings({"object_store": path}).object_store_url == path


def test_one_message_names_every_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILTSTONE_MAX_JOB_FILES", "0")
    with pytest.raises(
        ConfigurationError, match=r"setting http .*--http.*; setting max_job_files .*SILTSTONE_MAX_JOB_FILES"
    ):
        load_settings({"http": "x"})


def test_a_misspelt_setting_in_the_file_is_rejected(tmp_path: Path) -> None:
    file = _write(tmp_path / "siltstone.toml", "flush_byte = 1\n")
    with pytest.raises(ConfigurationError, match=r"siltstone.toml\): there is no such.*flush_bytes\?"):
        load_settings({}, file)


@pytest.mark.parametrize(
    "name",
    [
        "SILTSTONE_SERVICE_HOST",
        "SILTSTONE_PORT",
        "SILTSTONE_SERVICE_PORT_HTTP",
        "SILTSTONE_AGENT_PORT_8080_TCP_ADDR",
    ],
)
def test_variables_of_kubernetes_are_ignored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes sets such variables in every pod if there is a service named siltstone."""
    monkeypatch.setenv(name, "10.0.0.1")
    assert load_settings({}) == Settings()


def test_a_misspelt_variable_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILTSTONE_FLUSH_BYTE", "1")
    with pytest.raises(ConfigurationError, match=r"SILTSTONE_FLUSH_BYTE\): there is no such.*flush_bytes\?"):
        load_settings({})


def test_the_file_in_the_data_directory_cannot_change_the_data_directory(tmp_path: Path) -> None:
    _write(tmp_path / "siltstone-data" / "siltstone.toml", 'data_dir = "elsewhere"\n')
    with pytest.raises(ConfigurationError, match="points away"):
        load_settings({})


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent\.toml does not exist"):
        load_settings({}, tmp_path / "absent.toml")
    with pytest.raises(ConfigurationError, match=r"broken.toml is not TOML.*line 1"):
        load_settings({}, _write(tmp_path / "broken.toml", "http = \n"))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_settings({}, tmp_path)


def test_the_catalog_password_is_never_shown() -> None:
    settings = load_settings({"catalog": "postgresql://me:hunter2@db/log"})
    assert "hunter2" not in f"{settings!r} {settings} {settings.model_dump_json()}"
    with pytest.raises(ConfigurationError) as caught:
        load_settings({"catalog": "mysql://me:hunter2@db/log"})
    assert "hunter2" not in str(caught.value)


def test_addresses_of_both_families_are_split() -> None:
    assert split_address("localhost:0") == ("localhost", 0)
    assert split_address("[::1]:8080") == ("::1", 8080)
    assert is_loopback("127.0.0.2")
    assert is_loopback("::1")
    assert is_loopback("LocalHost")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("agent-1.example.org")


def test_the_reference_page_is_up_to_date() -> None:
    """If this fails, run: python -m siltstone.settings.reference."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == update(page)


def test_every_setting_is_described_in_a_sentence() -> None:
    for setting in SETTINGS.values():
        assert setting.description[0].isupper(), setting.name
        assert setting.description.endswith("."), setting.name


def test_a_section_takes_its_values_from_the_flat_names() -> None:
    settings = load_settings(
        {"flush_bytes": "2MiB", "num_partitions": "3", "group_max_size": "4", "merge_fan_in": "5"}
    )
    assert settings.agent.flush_bytes == 2 * 1024 * 1024
    assert settings.agent.default_partitions == 3
    assert settings.agent.groups.group_max_size == 4
    assert settings.planner.merge_fan_in == 5


@pytest.mark.parametrize("name", ["agent", "kernel_threads", "kafka_max_connections", "force"])
def test_sections_and_internal_fields_are_no_settings(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"setting {name} .*there is no such setting"):
        load_settings({name: 1})


def test_settings_that_contradict_each_other_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"group_min_session_timeout_ms \(5\) exceeds .* \(4\)"):
        load_settings({"group_min_session_timeout_ms": 5, "group_max_session_timeout_ms": 4})


def test_addresses_and_directories_reach_the_agent(tmp_path: Path) -> None:
    settings = load_settings(
        {"http": "[::1]:0", "kafka": "none", "local_dirs": f"{tmp_path}/a, {tmp_path}/b"}
    )
    agent = settings.agent_settings()
    assert agent.http_listeners == (HttpListener(host="::1", port=0),)
    assert agent.kafka_listeners == ()
    assert agent.local_directories == (tmp_path / "a", tmp_path / "b")
    assert agent.local_root is None
    assert load_settings({}).agent_settings().local_root == Path("siltstone-data/local-logs")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("127.0.0.1", 8081)),
        ({"http": "[::1]:0"}, ("::1", 0)),
        ({"http": "0.0.0.0:65535"}, ("0.0.0.0", 0)),  # not bound to
        ({"health": "127.0.0.1:7"}, ("127.0.0.1", 7)),
    ],
)
def test_health_has_the_port_after_that_of_http(given: dict[str, str], expected: tuple[str, int]) -> None:
    agent = load_settings(given).agent_settings()
    assert (agent.health_host, agent.health_port) == expected


def test_named_listeners_replace_the_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILTSTONE_LISTENER_NAME_WEB_HTTP_AUTHENTICATION", "basic")
    agent = load_settings(
        {
            "listeners": "PLAINTEXT://127.0.0.1:1,INNER://127.0.0.1:2",
            "advertised_listeners": "INNER://agent-1:0",
            "http_listeners": "WEB://127.0.0.1:3",
            "listener_security_protocol_map": "INNER:PLAINTEXT,WEB:PLAINTEXT",
        }
    ).agent_settings()
    assert agent.kafka_listeners == (
        KafkaListener(port=1),
        KafkaListener(name="INNER", port=2, advertised_host="agent-1"),
    )
    assert agent.http_listeners == (
        HttpListener(name="WEB", port=3, authentication=(HttpAuthentication.BASIC,)),
    )
    assert (agent.health_host, agent.health_port) == ("127.0.0.1", 4)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"listeners": "PLAINTEXT://h:1", "kafka": "h:2"}, ["listeners replaces kafka", "remove kafka"]),
        ({"http_listeners": "PLAINTEXT://h:1", "http": "h:2"}, ["remove http"]),
        ({"listeners": "PLAINTEXT://h:1", "http_listeners": "PLAINTEXT://h:2"}, ["name PLAINTEXT"]),
        ({"listeners": "PLAINTEXT://h:1", "http_listeners": "SSL://h:1"}, ["ssl_certificate_location"]),
        ({"listener_name_x_ssl_client_auth": "none"}, ["x_ssl_client_auth", "HTTP, PLAINTEXT"]),
        ({"listener_name_x_ssl_client": "none"}, ["there is no such setting"]),
        ({"listener_security_protocol_map": "X:SSL"}, ["names X"]),
        ({"kafka": "127.0.0.1:8080"}, ["the address of another listener"]),
    ],
)
def test_listeners_that_contradict_each_other_are_named(options: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(options)
    for part in parts:
        assert part in str(caught.value)
