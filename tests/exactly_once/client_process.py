"""Processes of clients, and faults of them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.crash.clients import TIMEOUT_SECONDS
from tests.crash.processes import ROOT

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from pathlib import Path

    from tests.crash.faults import Fault

_FREEZE_SECONDS: Final = (0.5, 2.0)
_CRASHES: Final = {-signal.SIGABRT, -signal.SIGSEGV}
"""How librdkafka 2.x ends now and then after it was fenced: glibc finds its heap corrupted."""
_MAX_CRASHES: Final = 3


@dataclass
class ClientProcess:
    """A client that may be killed, frozen and replaced; its successor has the same transactional id."""

    role: str
    name: str
    bootstrap: str
    directory: Path
    seed: int
    _started: int = 0
    _crashes: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _zombies: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        """Start the client, or its successor."""
        self._started += 1
        name = f"{self.name}-{self._started}"
        with (self.directory / f"{name}.log").open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.exactly_once.client", self.role, name, self.name),
                    *(self.bootstrap, str(self.directory), str(self.seed)),
                ],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def check(self) -> None:
        """Fail if the client has ended by itself; replace it if its library has crashed."""
        assert self._process is not None
        if self._process.poll() in _CRASHES and self._crashes < _MAX_CRASHES:
            self._crashes += 1
            self._process.communicate()  # closes its standard input
            self.start()
            return
        log = self.directory / f"{self.name}-{self._started}.log"
        assert self._process.poll() is None, log.read_text(encoding="utf-8")

    def replace(self) -> None:
        """Kill the client, and start its successor."""
        self.kill()
        self.start()

    def replace_frozen(self, seconds: float) -> None:
        """Freeze the client, start its successor, and let the client continue as a zombie."""
        zombie = self._process
        assert zombie is not None
        zombie.send_signal(signal.SIGSTOP)
        self._zombies.append(zombie)
        self.start()
        time.sleep(seconds)
        zombie.send_signal(signal.SIGCONT)
        time.sleep(seconds)
        zombie.kill()

    def stop(self) -> None:
        """Let the client end its work, and wait."""
        self.check()
        assert self._process is not None
        self._process.communicate(timeout=TIMEOUT_SECONDS)
        assert self._process.returncode in {0, *_CRASHES}, self.name

    def kill(self) -> None:
        """Kill the client and its predecessors."""
        for each in (*self._zombies, *([self._process] if self._process is not None else [])):
            each.kill()
            each.communicate()
        self._zombies.clear()


@dataclass
class ClientFaults:
    """Faults of clients' processes."""

    clients: Sequence[ClientProcess]

    def all(self) -> list[Fault]:
        """Return the faults by name."""
        return [("client: kill -9", self.kill), ("client: zombie", self.freeze)]

    def kill(self, chance: random.Random) -> None:
        """Kill a client within a transaction; its successor aborts it."""
        chance.choice(self.clients).replace()

    def freeze(self, chance: random.Random) -> None:
        """Let a frozen client continue after its successor has taken its transactional id."""
        chance.choice(self.clients).replace_frozen(chance.uniform(*_FREEZE_SECONDS))
