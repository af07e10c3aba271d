"""The zstd package: Python's own, or its backport with the same interface before Python 3.14."""

from __future__ import annotations

import sys
from typing import Final

if sys.version_info >= (3, 14):
    from compression import zstd

    EXTENSION: Final = "_zstd"
else:
    from backports import zstd

    EXTENSION: Final = "backports.zstd._zstd"

__all__ = ["EXTENSION", "zstd"]
