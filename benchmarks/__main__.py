"""Run all benchmarks, each in a separate process.

    python -m benchmarks [--quick] [--json]

The options are passed to each benchmark. `python -m benchmarks.NAME --help` describes one of them.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

_NOT_RUN = {"__main__", "beside_reality", "cost", "parts"}
"""Modules of this package that are no benchmarks, or take ten minutes."""


def main(arguments: list[str]) -> int:
    """Run the benchmarks; return 1 if one of them failed."""
    failed = []
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name in _NOT_RUN:
            continue
        print(f"== {module.name}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{module.name}", *arguments], check=False)
        if done.returncode:
            failed.append(module.name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
