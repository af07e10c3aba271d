"""Sources of settings: a TOML file, the environment and the command line.

A later source overrides an earlier one, setting by setting: first the file, then `SILTSTONE_*` variables,
then command-line options. A setting has one name everywhere: `spark_master` in the file,
`SILTSTONE_SPARK_MASTER` in the environment, `--spark-master` on the command line.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ByteSize, ValidationError

from core.errors import InvalidInputError
from siltstone.settings.configuration import ENVIRONMENT_PREFIX, SETTINGS, Settings, is_known, nested

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

FILE_NAME = "siltstone.toml"
# Kubernetes sets such variables in every pod of a namespace with a service named siltstone or siltstone-….
_KUBERNETES = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)$")


class ConfigurationError(InvalidInputError):
    """A setting is wrong; the message names the setting, its source and the rule that it breaks."""


def load_settings(options: Mapping[str, object], config: Path | None = None) -> Settings:
    """Return the settings of this process; `options` are those of the command line, by setting name.

    `config` is the file that the user named. Without it, `siltstone.toml` in the data directory is read if it
    exists. Raises ConfigurationError with all wrong settings in one message.
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
    settings = _validate(merged, origins)
    if settings.s3_endpoint is not None and not (settings.object_store or "").lower().startswith("s3://"):
        raise ConfigurationError(
            f"setting s3_endpoint ({origins['s3_endpoint']}) is for an object store on S3, but the objects "
            f"are in {settings.object_store_url}",
            remedy="give --object-store s3://bucket/prefix as well, or leave the endpoint out",
        )
    return settings


def _validate(values: Mapping[str, Any], origins: Mapping[str, str]) -> Settings:
    problems = {name: _unknown(name) for name in values if not is_known(name)}
    known = {name: value for name, value in values.items() if is_known(name)}
    try:
        settings = Settings.model_validate(nested(known))
    except ValidationError as failure:
        for detail in failure.errors(include_url=False, include_input=False):
            problems[str(detail["loc"][-1])] = _rule(detail)
    except InvalidInputError as failure:  # two settings contradict each other
        raise ConfigurationError(failure.message, remedy=failure.remedy) from None
    else:
        if not problems:
            return settings
    sentences = [
        f"setting {name} ({origins.get(name, 'its default')}): {rule}" for name, rule in problems.items()
    ]
    raise ConfigurationError(
        "; ".join(sentences), remedy="docs/reference/configuration.md lists the settings"
    ) from None


def _environment() -> dict[str, Any]:
    """Return the `SILTSTONE_*` variables by setting name, unknown names included; empty ones are unset."""
    found = {
        variable.upper().removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for variable, value in os.environ.items()
        if variable.upper().startswith(ENVIRONMENT_PREFIX) and value
    }
    return {
        name: value
        for name, value in found.items()
        if is_known(name) or not _KUBERNETES.search(f"_{name.upper()}")
    }


def _file_in_data_dir(options: Mapping[str, object], environment: Mapping[str, Any]) -> Path | None:
    chosen = options.get("data_dir") or environment.get("data_dir") or SETTINGS["data_dir"].default
    file = Path(str(chosen)) / FILE_NAME
    try:
        return file if file.is_file() else None
    except OSError as failure:
        raise ConfigurationError(
            f"data directory {chosen} cannot be read: {failure.strerror}",
            remedy="allow this user to read it, or name another one with --data-dir",
        ) from None


def _read_file(file: Path, *, in_data_dir: bool) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(
            f"configuration file {file} does not exist", remedy="name an existing file with --config"
        ) from None
    except (OSError, UnicodeDecodeError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else "it is not UTF-8"
        raise ConfigurationError(
            f"configuration file {file} cannot be read: {reason}", remedy="name another file with --config"
        ) from None
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


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, list(SETTINGS), n=1)
    return f"there is no such setting{f'; did you mean {near[0]}?' if near else ''}"


def _rule(detail: ErrorDetails) -> str:
    """Return the rule that a value breaks; bounds of sizes have a unit."""
    bounds = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}
    if detail["type"] not in bounds:
        return detail["msg"].removeprefix("Value error, ")
    comparison, kind = bounds[detail["type"]]
    bound = detail["ctx"][kind]
    info = SETTINGS[str(detail["loc"][-1])]
    return f"it must be {comparison} {ByteSize(bound).human_readable() if info.unit == 'bytes' else bound}"
