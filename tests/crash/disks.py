"""Disks of a campaign: small file systems in memory that become full or read-only.

They need permission to mount. Without it, directories take their place, and these faults are left out.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_SIZE: Final = 512 << 20
_SECONDS: Final = 30.0


class MemoryDisk:
    """A file system in memory that holds an agent's directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def mount(self) -> bool:
        """Return False if mounts are not permitted."""
        self._directory.mkdir(parents=True, exist_ok=True)
        if shutil.which("mount") is None:
            return False
        options = ["-t", "tmpfs", "-o", f"size={_SIZE},mode=0700", "tmpfs"]
        return _run("mount", *options, str(self._directory)) == 0

    def unmount(self) -> None:
        """Remove the file system, even if a process still uses it."""
        _run("umount", "--lazy", str(self._directory))

    def fill(self) -> None:
        """Leave no space (ENOSPC) from now on."""
        end = time.monotonic() + _SECONDS
        while True:  # the agent may write between the two calls
            used = shutil.disk_usage(self._directory).used
            if self._remount(f"size={max(used, 1 << 16)}") == 0:
                return
            assert time.monotonic() < end, f"{self._directory} could not be filled"

    def drain(self) -> None:
        """Leave space again."""
        assert self._remount(f"size={_SIZE}") == 0

    def set_read_only(self, *, on: bool) -> None:
        """Refuse writes (EROFS), or not; no process may have a file open for writing."""
        end = time.monotonic() + _SECONDS
        while self._remount("ro" if on else "rw"):
            assert time.monotonic() < end, f"{self._directory} is busy"
            time.sleep(0.05)

    def _remount(self, option: str) -> int:
        return _run("mount", "-o", f"remount,{option}", str(self._directory))


def _run(*command: str) -> int:
    return subprocess.run(command, check=False, capture_output=True, timeout=_SECONDS).returncode
