"""Where settings come from: a TOML file, the environment and the command line.

A later source wins over an earlier one, setting by setting: the file, then `SILTSTONE_*` variables, then
command-line options. A setting has one name everywhere: `spark_master` in the file, `SILTSTONE_SPARK_MASTER`
in the environment, `--spark-master` on the command line.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ByteSize, ValidationError
from pydantic_settings import EnvSettingsSource, InitSettingsSource

from core.errors import InvalidInputError
from siltstone.settings.configuration import ENVIRONMENT_PREFIX, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_NAME = "siltstone.toml"
# Every pod near a service named siltstone, or siltstone-something, gets such variables.
_OF_KUBERNETES = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)$")


class ConfigurationError(InvalidInputError):
    """A setting is wrong; the message names it, its source and the rule that it breaks."""


def load_settings(options: Mapping[str, object], config: Path | None = None) -> Settings:
    """The settings that hold for `options` (those given on the command line, by setting name).

    `config` is the file that the user named; without it, `siltstone.toml` in the data directory is read
    where it exists. Raises `ConfigurationError` with every wrong setting in one message.
    """
    environment = _environment()
    file = config if config is not None else _file_in_data_dir(options, environment)
    sources = [
        *([(f"{file}", _read_file(file, in_data_dir=config is None))] if file is not None else []),
        ("environment", environment),
        ("command line", {name: value for name, value in options.items() if value is not None}),
    ]
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, values in sources:
        for name, value in values.items():
            merged[name] = value
            origins[name] = _origin(origin, name)
    try:
        settings = Settings(**InitSettingsSource(Settings, merged)())
    except ValidationError as failure:
        raise _explain(failure, origins) from None
    if settings.s3_endpoint is not None and not (settings.object_store or "").lower().startswith("s3://"):
        raise ConfigurationError(
            f"setting s3_endpoint ({origins['s3_endpoint']}) is for an object store on S3, but the objects "
            f"are in {settings.object_store_url}",
            remedy="give --object-store s3://bucket/prefix as well, or leave the endpoint out",
        )
    return settings


def _environment() -> dict[str, Any]:
    """What `SILTSTONE_*` says, also of settings that do not exist; but for what Kubernetes sets."""
    known = {
        name: value
        for name, value in EnvSettingsSource(Settings)().items()
        if name in Settings.model_fields and value != ""
    }
    names = {f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in Settings.model_fields}
    unknown = [
        name
        for name, value in os.environ.items()
        if name.upper().startswith(ENVIRONMENT_PREFIX)
        and name.upper() not in names
        and value
        and not _OF_KUBERNETES.search(name)
    ]
    return known | {
        name.upper().removeprefix(ENVIRONMENT_PREFIX).lower(): os.environ[name] for name in unknown
    }


def _file_in_data_dir(options: Mapping[str, object], environment: Mapping[str, Any]) -> Path | None:
    chosen = (
        options.get("data_dir") or environment.get("data_dir") or Settings.model_fields["data_dir"].default
    )
    file = Path(str(chosen)) / FILE_NAME
    try:
        return file if file.is_file() else None
    except OSError as failure:
        raise ConfigurationError(
            f"data directory {chosen} cannot be looked into: {failure.strerror}",
            remedy="let this user read it, or name another one with --data-dir",
        ) from None


def _read_file(file: Path, *, in_data_dir: bool) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(
            f"configuration file {file} does not exist", remedy="name an existing file with --config"
        ) from None
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigurationError(f"configuration file {file} cannot be read: {failure}") from None
    except tomllib.TOMLDecodeError as failure:
        raise ConfigurationError(
            f"configuration file {file} is not TOML: {failure}",
            remedy="correct it; see docs/reference/configuration.md",
        ) from None
    if in_data_dir and "data_dir" in values:
        raise ConfigurationError(
            f"data_dir in {file} points away from the directory in which the file was found",
            remedy="remove it, or name the file with --config",
        )
    return values


def _origin(origin: str, name: str) -> str:
    match origin:
        case "command line":
            return f"from the command line, --{name.replace('_', '-')}"
        case "environment":
            return f"from the environment, {ENVIRONMENT_PREFIX}{name.upper()}"
        case file:
            return f"from {file}"


def _explain(failure: ValidationError, origins: Mapping[str, str]) -> ConfigurationError:
    sentences = []
    for detail in failure.errors(include_url=False, include_input=False):
        name = str(detail["loc"][0]) if detail["loc"] else "settings"
        if detail["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, list(Settings.model_fields), n=1)
            rule = f"there is no such setting{f'; did you mean {near[0]}?' if near else ''}"
        elif detail["type"].startswith("byte_size"):
            rule = "it is not a size; give a number of bytes, or one with a unit such as 8MiB"
        else:
            rule = _bounds(name, detail["msg"].removeprefix("Value error, "))
        sentences.append(f"setting {name} ({origins.get(name, 'its default')}): {rule}")
    return ConfigurationError(
        "; ".join(sentences), remedy="docs/reference/configuration.md lists the settings"
    )


def _bounds(name: str, rule: str) -> str:
    """The rule, in the units of the setting."""
    found = re.search(r"(greater|less) than or equal to (\d+)$", rule)
    if found is None:
        return rule
    bytes_meant = Settings.model_fields[name].annotation is ByteSize
    bound = ByteSize(found[2]).human_readable() if bytes_meant else found[2]
    return f"it must be {'at least' if found[1] == 'greater' else 'at most'} {bound}"
