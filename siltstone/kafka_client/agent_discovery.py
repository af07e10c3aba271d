"""Discovery of the agents of a data directory: each agent keeps a file there while it serves.

`agents/<process id>.json` contains its addresses by protocol. The file is only a hint: a command sends a
health check to the agent, and ignores the file if the agent does not respond.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import httpx
import orjson

from core.errors import InvalidInputError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_PROBE_SECONDS = 2.0
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}  # noqa: S104 - read, not bound to


class NoAgentError(RetryableError):
    """No agent of the data directory responds."""


@contextlib.contextmanager
def announce(data_dir: Path, addresses: Mapping[str, str]) -> Iterator[None]:
    """Publish the addresses of this process in the data directory while the block runs.

    Raises InvalidInputError if the directory cannot be written.
    """
    directory = data_dir / "agents"
    file = directory / f"{os.getpid()}.json"
    draft = file.with_suffix(".tmp")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_stale_files(directory)
        draft.write_bytes(orjson.dumps({**addresses, "pid": os.getpid()}))
        draft.replace(file)
    except OSError as failure:
        raise InvalidInputError(
            f"{failure.filename or directory} cannot be written: {failure.strerror}",
            remedy="let this user write to the data directory, or name another one with --data-dir",
        ) from failure
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def bootstrap_servers(data_dir: Path) -> str:
    """Return the Kafka addresses of the healthy agents of a data directory, as `HOST:PORT,…`.

    The agent that started last comes first. Raises NoAgentError if there is none.
    """
    failures = []
    found = []
    for addresses in _published_addresses(data_dir / "agents"):
        url = f"http://{_reachable(addresses['health'])}"
        problem = _problem_of(url)
        if problem is not None:
            failures.append(f"{url} {problem}")
        elif "kafka" not in addresses:
            failures.append(f"{url} serves no Kafka clients")
        else:
            found.append(_reachable(addresses["kafka"]))
    if found:
        return ",".join(found)
    attempts = f"; {', '.join(failures)}" if failures else ""
    remedy = (
        "wait for it, or repair what this names"
        if failures
        else f"start one with: siltstone agent --data-dir {data_dir}"
    )
    raise NoAgentError(
        f"no agent of data directory {data_dir} responds{attempts}",
        remedy=f"{remedy}, or name a broker with --bootstrap-server HOST:PORT",
    )


def _problem_of(url: str) -> str | None:
    """Return why the agent at `url` cannot serve, from its own health report; None if it is healthy."""
    try:
        response = httpx.get(f"{url}/healthz", timeout=_PROBE_SECONDS, trust_env=False)
    except httpx.HTTPError:
        return "did not respond"
    if response.is_success:
        return None
    with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        problems = orjson.loads(response.content)["problems"]
        return f"is unhealthy: {', '.join(f'{name}: {what}' for name, what in problems.items())}"
    return f"responded with status {response.status_code}"


def _published_addresses(directory: Path) -> list[dict[str, str]]:
    found: list[tuple[float, dict[str, str]]] = []
    for file in directory.glob("*.json"):
        # The agent may stop and delete its file between any two of these calls.
        with contextlib.suppress(OSError, orjson.JSONDecodeError, KeyError, TypeError):
            body = orjson.loads(file.read_bytes())
            # Other listeners may have TLS, and require authentication.
            addresses = {"health": str(body.get("health", body["http"]))}
            if "kafka" in body:
                addresses["kafka"] = str(body["kafka"])
            found.append((file.stat().st_mtime, addresses))
    return [addresses for _, addresses in sorted(found, key=lambda each: each[0], reverse=True)]


def _reachable(address: str) -> str:
    """Replace a wildcard address by loopback."""
    host, _, port = address.rpartition(":")
    return f"{_LOOPBACK_OF.get(host, host)}:{port}"


def _remove_stale_files(directory: Path) -> None:
    """Delete the files of agents that were killed."""
    for file in directory.glob("*.json"):
        if file.stem.isdecimal() and not _is_running(int(file.stem)):
            file.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
