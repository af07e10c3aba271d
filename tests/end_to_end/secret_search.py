"""Search of everything that processes write for planted secrets: files, texts, arguments and environments.

Each planted secret contains `MARKER`, so that one pattern finds all of them, also in base64, hexadecimal and
UTF-16. The rest of a secret says which one it is.
"""

from __future__ import annotations

import base64
import re
import threading
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import Self

MARKER = "QZpLaNtEdZQ"
_SCAN_SECONDS = 0.2


def planted(name: str) -> str:
    """Return a secret."""
    return f"{MARKER}-{name}"


def _forms() -> Iterator[bytes]:
    """Return the marker in every form in which a secret that contains it may be written."""
    plain = MARKER.encode()
    yield plain
    yield MARKER.encode("utf-16-le")
    yield plain.hex().encode()
    yield plain.hex().upper().encode()
    for before in range(3):  # the characters of base64 depend on where the marker begins
        encoded = base64.b64encode(bytes(before) + plain)
        first, end = -(-before * 4 // 3), len(encoded) - 4 if (before + len(plain)) % 3 else len(encoded)
        yield encoded[first:end]


_FOUND = re.compile(b"|".join(map(re.escape, _forms())))
_AROUND = 60


def secrets_in(data: bytes | str) -> list[str]:
    """Return the places of a text or of bytes that show a secret."""
    searched = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    found = (match.span() for match in _FOUND.finditer(searched))
    return [repr(searched[max(0, start - _AROUND) : end + _AROUND]) for start, end in found]


def secrets_below(directory: Path) -> dict[str, list[str]]:
    """Return the files below a directory whose names or contents show a secret."""
    found = {}
    for path in _paths_below(directory):
        try:
            data = path.read_bytes() if path.is_file() else b""
        except OSError:  # it was removed
            data = b""
        if shown := secrets_in(str(path)) + secrets_in(data):
            found[str(path)] = shown
    return found


def _paths_below(directory: Path) -> list[Path]:
    while True:
        try:
            return list(directory.rglob("*"))
        except FileNotFoundError:  # a directory was removed meanwhile
            continue


class ProcessWatch:
    """Looks at all processes of the machine again and again, and at the files below a directory.

    `found` has the secrets in arguments, titles, files, and variables of the environment except `given`.
    """

    def __init__(self, directory: Path, given: Iterable[str]) -> None:
        self.found: set[str] = set()
        self.commands: set[str] = set()
        self._directory = directory
        self._given = frozenset(given)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_SCAN_SECONDS):
            self.scan()

    def scan(self) -> None:
        """Look once."""
        for process in psutil.process_iter(["cmdline", "name", "environ"]):
            self._look_at(process.info)
        for path, shown in secrets_below(self._directory).items():
            self.found.update(f"{path}: {each}" for each in shown)

    def _look_at(self, process: dict[str, Any]) -> None:
        command = " ".join(process["cmdline"] or [])
        self.commands.add(command)
        self.found.update(f"arguments: {each}" for each in secrets_in(command))
        self.found.update(f"title: {each}" for each in secrets_in(process["name"] or ""))
        for name, value in (process["environ"] or {}).items():
            if name not in self._given and (secrets_in(value) or secrets_in(name)):
                self.found.add(f"environment of {command}: {name}")
