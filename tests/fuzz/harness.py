"""Harness of all fuzz targets: runs libFuzzer through atheris, with valid inputs as initial corpus.

    NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=... python -m tests.fuzz.<target> [-runs=N] [-seed=N] [corpus ...]

The options are libFuzzer's. An input passes if the code under test returns a result or raises its expected
error. Any other exception, a failed check, or a crash ends the run and writes the input to the working
directory.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def fuzz(one_input: Callable[[bytes], None], seeds: Iterable[bytes]) -> None:
    """Run until libFuzzer stops. The seeds are tried first, which also compiles all kernels."""
    seeds = list(seeds)
    for seed in seeds:
        one_input(seed)
    atheris: Any = import_module("atheris")  # without types, and not available on every system
    # Only Python code can be instrumented. Valid inputs reach the kernels.
    for name in [name for name in sys.modules if name.startswith("object_format.")]:
        module = sys.modules[name]
        for value in vars(module).values():
            if getattr(value, "__module__", None) == name and type(value).__name__ == "function":
                atheris.instrument_func(value)
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds):
            (Path(corpus) / f"{number}").write_bytes(seed)
        atheris.Setup([sys.argv[0], "-max_len=4096", *sys.argv[1:], corpus], one_input)
        atheris.Fuzz()
