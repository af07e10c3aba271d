"""The process's own settings: one typed model, which `siltstone.settings.sources` fills.

`docs/reference/configuration.md` lists them all; a test compares it with this model.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ByteSize, Field, SecretStr, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from typing_extensions import override

from agent.settings import AgentSettings
from siltstone.settings.compaction_settings import CompactionSettings
from siltstone.settings.kafka_settings import KafkaSettings

MIB = 1024 * 1024
_AGENT = AgentSettings()
ENVIRONMENT_PREFIX = "SILTSTONE_"
# RFC 3986, section 3.1. A path that has a colon further on, such as ./a:b, is not one.
_URL_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?:/|$)|(s3|file):", re.IGNORECASE)
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def split_address(address: str) -> tuple[str, int]:
    """`HOST:PORT` (an IPv6 host in brackets) as (host, port); ValueError says what is wrong."""
    host, separator, port = address.rpartition(":")
    if not separator or not host:
        raise ValueError(f"{address!r} is not HOST:PORT, such as 127.0.0.1:8080")
    if not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{port!r} in {address!r} is not a port: 0 (any free one) to 65535")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if ":" in host:
        raise ValueError(f"the IPv6 host in {address!r} needs brackets, such as [::1]:8080")
    return host, int(port)


def _scheme(value: str) -> str:
    """What stands before the first colon of a URL, also of one that lacks slashes; empty for a path."""
    found = _URL_SCHEME.match(value)
    return "" if found is None else (found[1] or found[2]).lower()


class Settings(CompactionSettings, KafkaSettings):
    """Everything that a Siltstone process is told from outside, but for what one command does."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True, validate_default=True
    )

    data_dir: Path = Field(
        default=Path("siltstone-data"),
        description="Where the embedded parts keep their state: the embedded catalog, the local object "
        "store, and what agents leave to be found by.",
    )
    object_store: str | None = Field(
        default=None,
        description="Where segment files live: `s3://bucket/prefix`, or a directory. "
        "Unset: `objects` in the data directory.",
    )
    s3_endpoint: str | None = Field(
        default=None,
        description="The URL of an S3-compatible server. Unset: AWS, or what boto3 is configured with.",
    )
    s3_region: str | None = Field(
        default=None, description="The region of the bucket. Unset: as boto3 finds it."
    )
    catalog: SecretStr | None = Field(
        default=None,
        description="The catalog, `postgresql://user@host/database`. Its password is never printed. "
        "Unset: a private PostgreSQL in the data directory.",
    )
    http: str = Field(
        default="127.0.0.1:8080",
        description="HOST:PORT on which an agent serves HTTP; port 0 takes a free one. The default host is "
        "reached from this machine alone: there is no authentication yet.",
    )
    kafka: str | None = Field(
        default="127.0.0.1:9092",
        description="HOST:PORT on which an agent serves Kafka clients; port 0 takes a free one, and `none` "
        "serves none. As with HTTP, there is no authentication yet.",
    )
    kafka_advertised: str | None = Field(
        default=None,
        description="HOST:PORT that Kafka clients are told to connect to; port 0 stands for the one that was "
        "taken. Unset: where the agent listens.",
    )
    rack: str | None = Field(
        default=None, description="The zone that an agent stands in, for Kafka clients that say theirs."
    )
    local_dirs: str | None = Field(
        default=None,
        description="Directories on an agent's own disks, separated by commas: for copies of the tail, and "
        "for topics with `storage.mode=local`, which live there alone. Unset: a directory of the agent's own "
        "below `local-logs` in the data directory; `none`: no disks are used.",
    )
    log_level: str = Field(
        default="warning", description="The least severe level that is logged: debug, info, warning, error."
    )
    flush_interval_ms: int = Field(
        default=_AGENT.flush_interval_ms,
        ge=0,
        le=60_000,
        description="How long an agent gathers batches before it writes them as one file.",
    )
    flush_bytes: ByteSize = Field(
        default=ByteSize(_AGENT.flush_bytes),
        ge=1,
        le=1024 * MIB,
        description="The size at which it writes at once.",
    )
    max_buffered_bytes: ByteSize = Field(
        default=ByteSize(_AGENT.max_buffered_bytes),
        ge=1,
        description="What an agent takes ahead of its commits; beyond, it asks producers to come back.",
    )
    max_request_bytes: ByteSize = Field(
        default=ByteSize(_AGENT.max_request_bytes), ge=1, description="The largest produce request it reads."
    )
    tail_bytes: ByteSize = Field(
        default=ByteSize(_AGENT.tail_bytes),
        ge=0,
        description="What an agent keeps in memory of the newest batches that it committed.",
    )
    cache_bytes: ByteSize = Field(
        default=ByteSize(_AGENT.cache_bytes), ge=0, description="An agent's cache of ranges of objects."
    )
    read_ahead_bytes: ByteSize = Field(
        default=ByteSize(_AGENT.read_ahead_bytes),
        ge=0,
        description="How much of a large section it reads ahead of a sequential reader by one request to the"
        " object store; 0: it reads nothing ahead.",
    )
    drain_ms: int = Field(
        default=_AGENT.drain_ms,
        ge=0,
        description="How long an agent that was told to stop goes on serving, while `/healthz` answers 503.",
    )
    stop_timeout_ms: int = Field(
        default=_AGENT.stop_timeout_ms, ge=1, description="How long it may then take to finish what it took."
    )
    grace_seconds: int = Field(
        default=60, ge=0, description="How long a dead object is kept for readers that may still hold it."
    )
    spark_master: str = Field(
        default="local[*]", min_length=1, description="Where compaction runs: any Spark master."
    )

    @field_validator("http", "kafka", "kafka_advertised")
    @classmethod
    def _address_is_one(cls, value: str | None) -> str | None:
        if value is not None:
            split_address(value)
        return value

    @field_validator("kafka", mode="before")
    @classmethod
    def _none_is_none(cls, value: object) -> object:
        return None if value == "none" else value

    @field_validator("log_level")
    @classmethod
    def _level_is_known(cls, value: str) -> str:
        if value.lower() not in {"debug", "info", "warning", "error"}:
            raise ValueError(f"{value!r} is not one of debug, info, warning, error")
        return value.lower()

    @field_validator("object_store")
    @classmethod
    def _store_is_supported(cls, value: str | None) -> str | None:
        if value is None:
            return value
        if not value.strip():
            raise ValueError("it is empty; give s3://bucket/prefix or a directory")
        scheme = _scheme(value)
        if scheme not in {"", "file", "s3"}:
            raise ValueError(f"{scheme}:// is not supported; give s3://bucket/prefix or a directory")
        if scheme and not value.lower().startswith(f"{scheme}://"):
            raise ValueError(
                f"after {scheme}: come two slashes; give s3://bucket/prefix or a directory "
                f"(./{scheme}:… for one of that name)"
            )
        if scheme == "s3" and not urlsplit(value).netloc:
            raise ValueError("it names no bucket; give s3://bucket/prefix")
        return value

    @field_validator("s3_endpoint")
    @classmethod
    def _endpoint_is_a_url(cls, value: str | None) -> str | None:
        if value is not None and (
            urlsplit(value).scheme not in {"http", "https"} or not urlsplit(value).netloc
        ):
            raise ValueError(f"{value!r} is not a URL such as http://127.0.0.1:9000")
        return value

    @field_validator("catalog")
    @classmethod
    def _catalog_is_postgres(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and urlsplit(value.get_secret_value()).scheme not in {"postgresql", "postgres"}:
            raise ValueError("it is not a URL such as postgresql://user@host:5432/database")
        return value

    @property
    def object_store_url(self) -> str:
        """The object store's URL, with the default filled in."""
        return self.object_store if self.object_store is not None else str(self.data_dir / "objects")

    @property
    def http_address(self) -> tuple[str, int]:
        """Host and port on which an agent listens."""
        return split_address(self.http)

    @property
    def local_directories(self) -> tuple[Path, ...]:
        """The directories that `local_dirs` names; none when it is unset, or says so."""
        if self.local_dirs in {None, "none"}:
            return ()
        return tuple(Path(name.strip()) for name in (self.local_dirs or "").split(",") if name.strip())

    @property
    def kafka_address(self) -> tuple[str | None, int]:
        """Host and port on which an agent serves Kafka clients; without a host it serves none."""
        return (None, 0) if self.kafka is None else split_address(self.kafka)

    @property
    def kafka_is_local(self) -> bool:
        """Whether only this machine reaches the agent by the Kafka protocol."""
        return self.kafka is None or self.kafka_address[0] in LOOPBACK

    @property
    def http_is_local(self) -> bool:
        """Whether only this machine reaches the agent."""
        return self.http_address[0] in LOOPBACK

    @classmethod
    @override
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what `load_settings` has merged: it must know which source a wrong value came from."""
        return (init_settings,)
