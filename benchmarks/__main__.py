"""Run all benchmarks, each in a separate process.

    python -m benchmarks [--quick] [--json]

The options are passed to each benchmark. `python -m benchmarks.NAME --help` describes one of them.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

_PARTS = {
    "__main__",
    "beside_reality",
    "catalog_load",
    "compact_timeline",
    "cost",
    "measuring",
    "dedupe_data",
    "kafka_limits",
    "kafka_loads",
    "kafka_process",
    "kafka_steps",
    "kafka_wire",
    "slow_store",
}
"""Modules of this package that are not benchmarks."""


def main(arguments: list[str]) -> int:
    """Run the benchmarks; return 1 if one of them failed."""
    failed = []
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name in _PARTS:
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
