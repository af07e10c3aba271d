"""How commands find the agents of their data directory: each agent leaves a file there while it serves.

`agents/<process id>.json` holds its addresses by protocol. The file is a hint and no more: whoever reads it
asks the agent itself whether it serves, and a file whose agent does not answer is passed over.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import httpx
import orjson

from core.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_PROBE_SECONDS = 2.0
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}  # noqa: S104 - read, not bound to


class NoAgentError(RetryableError):
    """No agent answers where one was looked for."""


@contextlib.contextmanager
def announce(data_dir: Path, addresses: Mapping[str, str]) -> Iterator[None]:
    """Leave this process's addresses in the data directory for as long as the block runs."""
    directory = data_dir / "agents"
    directory.mkdir(parents=True, exist_ok=True)
    _remove_stale_files(directory)
    file = directory / f"{os.getpid()}.json"
    draft = file.with_suffix(".tmp")
    draft.write_bytes(orjson.dumps({**addresses, "pid": os.getpid()}))
    draft.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def bootstrap_servers(data_dir: Path) -> str:
    """Where agents of this data directory that answer serve Kafka clients, as clients take it: `HOST:PORT,…`.

    The latest to start comes first. Raises `NoAgentError`.
    """
    tried = []
    found = []
    for addresses in _announced_addresses(data_dir / "agents"):
        url = f"http://{_reachable(addresses['http'])}"
        problem = _problem_of(url)
        if problem is not None:
            tried.append(f"{url} {problem}")
        elif "kafka" not in addresses:
            tried.append(f"{url} serves no Kafka clients")
        else:
            found.append(_reachable(addresses["kafka"]))
    if found:
        return ",".join(found)
    seen = f"; {', '.join(tried)}" if tried else ""
    raise NoAgentError(
        f"no agent serves from data directory {data_dir}{seen}",
        remedy=f"start one with: siltstone agent --data-dir {data_dir}, or name a broker with "
        "--bootstrap-server HOST:PORT",
    )


def _problem_of(url: str) -> str | None:
    """What keeps the agent at `url` from serving, as it says itself; None when it is well."""
    try:
        response = httpx.get(f"{url}/healthz", timeout=_PROBE_SECONDS, trust_env=False)
    except httpx.HTTPError:
        return "did not answer"
    if response.is_success:
        return None
    with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        problems = orjson.loads(response.content)["problems"]
        return f"is not well: {', '.join(f'{name} {what}' for name, what in problems.items())}"
    return f"answered {response.status_code}"


def _announced_addresses(directory: Path) -> list[dict[str, str]]:
    found: list[tuple[float, dict[str, str]]] = []
    for file in directory.glob("*.json"):
        # The agent may leave, and take its file along, between any two of these calls.
        with contextlib.suppress(OSError, orjson.JSONDecodeError, KeyError, TypeError):
            body = orjson.loads(file.read_bytes())
            addresses = {"http": str(body["http"])}
            if "kafka" in body:
                addresses["kafka"] = str(body["kafka"])
            found.append((file.stat().st_mtime, addresses))
    return [addresses for _, addresses in sorted(found, key=lambda each: each[0], reverse=True)]


def _reachable(address: str) -> str:
    """An agent that listens on every interface is reached over loopback."""
    host, _, port = address.rpartition(":")
    return f"{_LOOPBACK_OF.get(host, host)}:{port}"


def _remove_stale_files(directory: Path) -> None:
    """Remove what agents left that were killed."""
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
