"""How commands find an agent of their data directory: each agent leaves a file there while it serves.

`agents/<process id>.json` holds the address. The file is a hint and no more: whoever reads it asks the agent
itself whether it serves, and a file whose agent does not answer is passed over.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import httpx
import orjson

from bedrock.errors import InvalidInputError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PROBE_SECONDS = 2.0
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}  # noqa: S104 - read, not bound to


class NoAgentError(RetryableError):
    """No agent answers where one was looked for."""


@contextlib.contextmanager
def announced(data_dir: Path, address: str) -> Iterator[None]:
    """Leave this process's address in the data directory for as long as the block runs."""
    directory = data_dir / "agents"
    directory.mkdir(parents=True, exist_ok=True)
    _sweep(directory)
    file = directory / f"{os.getpid()}.json"
    draft = file.with_suffix(".tmp")
    draft.write_bytes(orjson.dumps({"http": address, "pid": os.getpid()}))
    draft.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def find_agent(data_dir: Path) -> str:
    """The base URL of an agent of this data directory that answers; the latest to start comes first."""
    tried = []
    for address in _announced_addresses(data_dir / "agents"):
        url = f"http://{_reachable(address)}"
        if answers(url):
            return url
        tried.append(url)
    seen = f"; {', '.join(tried)} did not answer" if tried else ""
    raise NoAgentError(
        f"no agent serves from data directory {data_dir}{seen}",
        remedy=f"start one with: siltstone agent --data-dir {data_dir}, or name one with --agent URL",
    )


def answers(url: str) -> bool:
    """Whether an agent at `url` says that it is well."""
    try:
        return httpx.get(f"{url}/healthz", timeout=_PROBE_SECONDS, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def agent_url(data_dir: Path, named: str | None) -> str:
    """The base URL of the agent to talk to: the one that was `named`, or one found in the data directory."""
    if named is None:
        return find_agent(data_dir)
    url = named if "://" in named else f"http://{named}"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as failure:
        raise InvalidInputError(
            f"agent address {named!r} is not a URL: {failure}",
            remedy="give one such as http://127.0.0.1:8080",
        ) from None
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise InvalidInputError(
            f"agent address {named!r} is not an http URL", remedy="give one such as http://127.0.0.1:8080"
        )
    return url.rstrip("/")


def _announced_addresses(directory: Path) -> list[str]:
    found = []
    for file in directory.glob("*.json"):
        # The agent may leave, and take its file along, between any two of these calls.
        with contextlib.suppress(OSError, orjson.JSONDecodeError, KeyError, TypeError):
            found.append((file.stat().st_mtime, str(orjson.loads(file.read_bytes())["http"])))
    return [address for _, address in sorted(found, reverse=True)]


def _reachable(address: str) -> str:
    """An agent that listens on every interface is reached over loopback."""
    host, _, port = address.rpartition(":")
    return f"{_LOOPBACK_OF.get(host, host)}:{port}"


def _sweep(directory: Path) -> None:
    """Remove what agents left that were killed."""
    for file in directory.glob("*.json"):
        if file.stem.isdecimal() and not _lives(int(file.stem)):
            file.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
