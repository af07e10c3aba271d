"""All settings of a Siltstone process: one typed model, filled by `siltstone.settings.sources`.

The model is composed of the settings that the process itself needs and of the sections that the agent and
the planner define. A user sees one flat list of names: `SETTINGS` maps each name to its place in the model,
its default, bounds and description. `docs/reference/configuration.md` is generated from it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from agent.listener_settings import (
    ListenerSettings,
    check_listeners,
    http_authentication,
    http_listeners,
    is_override,
    kafka_listeners,
)
from agent.listeners import DEFAULT_HTTP_NAME, HttpListener, KafkaListener
from agent.settings import AgentSettings
from catalog.database.limits import DatabaseLimits
from catalog.database.url_check import check_url as check_catalog_url
from core.addresses import split_address
from core.errors import InvalidInputError
from core.settings import Bytes, is_public, setting_name
from maintenance.settings import GRACE_MS, MaintenanceSettings
from object_store.open import check_endpoint
from object_store.open import check_url as check_store_url
from planner.settings import PlannerSettings
from spark_jobs.settings import DEFAULT_WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

ENVIRONMENT_PREFIX: Final = "SILTSTONE_"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_MAX_PORT: Final = 65535


def _check_address(address: str) -> str:
    split_address(address)
    return address


Address = Annotated[str, AfterValidator(_check_address)]


class Settings(BaseModel):
    """Every setting of a process; options that belong to one command are not settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    data_dir: Path = Field(
        default=Path("siltstone-data"),
        description="Directory of the embedded catalog, the local object store, and the files that announce "
        "running agents to commands.",
    )
    object_store: str | None = Field(
        default=None,
        description="Location of segment files: `s3://bucket/prefix`, or a directory. "
        "Unset: `objects` in the data directory.",
    )
    s3_endpoint: str | None = Field(
        default=None,
        description="URL of an S3-compatible server. Unset: AWS, or the endpoint configured for boto3.",
    )
    s3_region: str | None = Field(
        default=None, description="Region of the bucket. Unset: the region configured for boto3."
    )
    s3_ca_bundle: Path | None = Field(
        default=None,
        description="PEM file of the authorities that sign the certificate of the S3 server. Spark's workers "
        "need it at the same path. Unset: the authorities that boto3 knows, or `AWS_CA_BUNDLE`.",
    )
    catalog: SecretStr | None = Field(
        default=None,
        description="URL of the catalog, `postgresql://user@host/database`. Its password is never printed. "
        "Unset: a private PostgreSQL in the data directory.",
    )
    allow_unsafe_commits: bool = Field(
        default=False,
        description="Accept a catalog with `synchronous_commit` off or local, which may lose acknowledged "
        "records in a crash or a failover. `siltstone_catalog_unsafe_commits` is 1 then.",
    )
    catalog_listen_url: SecretStr | None = Field(
        default=None,
        description="URL of the catalog for notifications, if `catalog` is the URL of a pooler: the address "
        "of PostgreSQL itself. Unset: agents behind a pooler see each other's commits up to a second late.",
    )
    client_config: Path | None = Field(
        default=None,
        description="File of librdkafka properties, one NAME=VALUE a line, with which commands connect to "
        "agents as Kafka clients: `security.protocol`, `sasl.mechanism`, `sasl.username`, `sasl.password` "
        "and others.",
    )
    http: Address = Field(
        default="127.0.0.1:8080",
        description="HOST:PORT on which an agent serves HTTP; port 0 takes a free port. "
        "`http_authentication` says how clients authenticate. By default only this machine can connect.",
    )
    health: Address | None = Field(
        default=None,
        description="HOST:PORT on which an agent serves `/livez` and `/readyz` alone, for probes: no other "
        "client can keep it from responding there. Unset: the host of `http` and the next port, or a free "
        "one if the port of `http` is 0.",
    )
    kafka: Address | None = Field(
        default="127.0.0.1:9092",
        description="HOST:PORT on which an agent serves Kafka clients; port 0 takes a free port, `none` "
        "turns the listener off. It authenticates no clients; `listeners` defines others that do.",
    )
    kafka_advertised: Address | None = Field(
        default=None,
        description="HOST:PORT that Kafka clients receive as the address of an agent; port 0 stands for the "
        "port of the listener. Unset: the listener's address.",
    )
    local_dirs: str | None = Field(
        default=None,
        description="Comma-separated directories on an agent's own disks, for the tail cache and for topics "
        "with `storage.mode=local`. Unset: a directory below `local-logs` in the data directory; `none`: no "
        "disks are used.",
    )
    log_level: str = Field(
        default="warning",
        description="Least severe level that is logged: `debug`, `info`, `warning` or `error`. "
        "Operations that the authorizer refuses are logged at every level.",
    )
    grace_seconds: int = Field(
        default=GRACE_MS // 1000,
        ge=0,
        description="Time for which an unreferenced object is kept for readers that still use it.",
    )
    start_timeout_seconds: int = Field(
        default=120,
        ge=0,
        description="Time for which an agent or a watcher waits at its start for the catalog and the object "
        "store. It then exits with code 75. A wrong address or password is an error at once.",
    )
    maintenance_enabled: bool = Field(
        default=True,
        description="Run retention, garbage collection and expiry inside agents. If no agent does, run "
        "`siltstone maintain`.",
    )
    spark_master: str = Field(
        default="local[*]", min_length=1, description="Spark master that runs compaction jobs."
    )
    executor_wait_seconds: float = Field(
        default=DEFAULT_WAIT_SECONDS,
        gt=0,
        description="Time for which compaction waits for Spark to run a task, before it returns its jobs to "
        "the queue.",
    )
    database: DatabaseLimits = Field(default_factory=DatabaseLimits)
    network: ListenerSettings = Field(default_factory=ListenerSettings)
    agent: AgentSettings = Field(default_factory=AgentSettings)
    planner: PlannerSettings = Field(default_factory=PlannerSettings)
    maintenance: MaintenanceSettings = Field(default_factory=MaintenanceSettings)

    @field_validator("data_dir", mode="before")
    @classmethod
    def _check_data_dir(cls, value: object) -> object:
        if value == "":
            raise ValueError("it is empty; give a directory")
        return value

    @field_validator("kafka", mode="before")
    @classmethod
    def _parse_none(cls, value: object) -> object:
        return None if value == "none" else value

    @field_validator("log_level")
    @classmethod
    def _check_log_level(cls, value: str) -> str:
        if value.lower() not in LOG_LEVELS:
            raise ValueError(f"{value!r} is not one of {', '.join(LOG_LEVELS)}")
        return value.lower()

    @field_validator("object_store")
    @classmethod
    def _check_object_store(cls, value: str | None) -> str | None:
        if value is None:
            return value
        if not value.strip():
            raise ValueError("it is empty; give s3://bucket/prefix or a directory")
        with _rule():
            check_store_url(value)
        return value

    @field_validator("s3_endpoint")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        with _rule():
            check_endpoint(value)
        return value

    @field_validator("catalog", "catalog_listen_url")
    @classmethod
    def _check_catalog(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            with _rule():
                check_catalog_url(value.get_secret_value())
        return value

    @property
    def listen_url(self) -> str | None:
        """URL of the catalog for notifications; None: that of the catalog."""
        return None if self.catalog_listen_url is None else self.catalog_listen_url.get_secret_value()

    @property
    def object_store_url(self) -> str:
        """URL of the object store, with the default filled in."""
        return self.object_store if self.object_store is not None else str(self.data_dir / "objects")

    def maintenance_settings(self) -> MaintenanceSettings:
        """Return the times of maintenance with the grace period filled in."""
        return replace(self.maintenance, grace_ms=self.grace_seconds * 1000)

    def agent_settings(self) -> AgentSettings:
        """Return the agent's section with its listeners and local directories filled in."""
        http = self._http_listeners()
        health_host, health_port = self._health_address(http[0].host, http[0].port)
        return replace(
            self.agent,
            http_listeners=http,
            http_allowed_hosts=tuple(
                host.strip() for host in self.network.http_allowed_hosts.split(",") if host.strip()
            ),
            health_host=health_host,
            health_port=health_port,
            kafka_listeners=self._kafka_listeners(),
            allow_insecure_listeners=self.network.allow_insecure_listeners,
            local_directories=self._local_directories(),
            local_root=self.data_dir / "local-logs" if self.local_dirs is None else None,
            maintenance=self.maintenance_settings() if self.maintenance_enabled else None,
        )

    @model_validator(mode="after")
    def _check_listeners(self) -> Self:
        for name, replaced in (("listeners", ("kafka", "kafka_advertised")), ("http_listeners", ("http",))):
            for other in replaced:
                if getattr(self.network, name) and other in self.model_fields_set and getattr(self, other):
                    raise InvalidInputError(
                        f"setting {name} replaces {other}, and both are set", remedy=f"remove {other}"
                    )
        check_listeners(self._kafka_listeners(), self._http_listeners(), self.network)
        return self

    def _kafka_listeners(self) -> tuple[KafkaListener, ...]:
        """Return those of `listeners`, or else the one of `kafka`."""
        if self.network.listeners or self.network.advertised_listeners or self.kafka is None:
            return kafka_listeners(self.network)
        host, port = split_address(self.kafka)
        advertised = (None, 0) if self.kafka_advertised is None else split_address(self.kafka_advertised)
        return (
            KafkaListener(host=host, port=port, advertised_host=advertised[0], advertised_port=advertised[1]),
        )

    def _http_listeners(self) -> tuple[HttpListener, ...]:
        """Return those of `http_listeners`, or else the one of `http`."""
        if self.network.http_listeners:
            return http_listeners(self.network)
        host, port = split_address(self.http)
        authentication = http_authentication(self.network, DEFAULT_HTTP_NAME)
        return (HttpListener(host=host, port=port, authentication=authentication),)

    def _health_address(self, http_host: str, http_port: int) -> tuple[str, int]:
        if self.health is not None:
            return split_address(self.health)
        return http_host, http_port + 1 if 0 < http_port < _MAX_PORT else 0

    def _local_directories(self) -> tuple[Path, ...]:
        if self.local_dirs in {None, "none"}:
            return ()
        return tuple(Path(name.strip()) for name in (self.local_dirs or "").split(",") if name.strip())


@contextmanager
def _rule() -> Iterator[None]:
    """Convert the error of a package, which shows no part of a secret, into one that pydantic expects."""
    try:
        yield
    except InvalidInputError as error:
        raise ValueError(str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingInfo:
    """One setting as users know it; `path` leads to its value in `Settings`, `keys` to it in the input."""

    name: str
    path: tuple[str, ...]
    keys: tuple[str, ...]
    annotation: Any
    default: object
    minimum: float | None
    maximum: float | None
    description: str

    @property
    def section(self) -> str:
        """Dotted path of the section that the setting belongs to; empty for the process itself."""
        return ".".join(self.path[:-1])

    @property
    def unit(self) -> str:
        """Unit of a number: the suffix of its name, or bytes of a size; empty for other settings."""
        otherwise = "bytes" if self.annotation is Bytes else ""
        return next((unit for suffix, unit in _UNITS.items() if self.name.endswith(suffix)), otherwise)

    def value(self, settings: Settings) -> object:
        """Return the value of this setting."""
        found: object = settings
        for name in self.path:
            found = getattr(found, name)
        return found


_UNITS: Final = {
    "_bytes": "bytes",
    "_bytes_per_hour": "bytes per hour",
    "_dollars_per_hour": "dollars per hour",
    "_ms": "milliseconds",
    "_seconds": "seconds",
    "_minutes": "minutes",
}


def is_known(name: str) -> bool:
    """Return True if there is a setting `name`, of the process or of one listener."""
    return name in SETTINGS or is_override(name)


def nested(values: Mapping[str, object]) -> dict[str, Any]:
    """Arrange values by setting name as `Settings` is composed; every name must be known."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *sections, key = ("network", "overrides", name) if name not in SETTINGS else SETTINGS[name].keys
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[key] = value
    return tree


def _process_settings() -> Iterator[SettingInfo]:
    for name, info in Settings.model_fields.items():
        default = info.default_factory() if info.default_factory is not None else info.default  # type: ignore[call-arg]  # ours take no argument
        if is_dataclass(default) and not isinstance(default, type):
            yield from _section_settings(default, (name,))
        else:
            yield SettingInfo(
                name=name,
                path=(name,),
                keys=(name,),
                annotation=info.annotation,
                default=default,
                minimum=_bound(info, "ge"),
                maximum=_bound(info, "le"),
                description=info.description or "",
            )


def _section_settings(section: Any, path: tuple[str, ...]) -> Iterator[SettingInfo]:  # noqa: ANN401 - any dataclass
    annotations = get_type_hints(type(section), include_extras=True)
    for each in fields(section):
        default = getattr(section, each.name)
        if is_dataclass(default):
            yield from _section_settings(default, (*path, each.name))
        elif is_public(each):
            yield SettingInfo(
                name=setting_name(each),
                path=(*path, each.name),
                keys=(*path, setting_name(each)),
                annotation=annotations[each.name],
                default=default,
                minimum=each.metadata.get("ge"),
                maximum=each.metadata.get("le"),
                description=each.metadata["description"],
            )


def _bound(info: FieldInfo, kind: str) -> float | None:
    return next((getattr(each, kind) for each in info.metadata if hasattr(each, kind)), None)


SETTINGS: Final[Mapping[str, SettingInfo]] = MappingProxyType(
    {each.name: each for each in _process_settings()}
)
