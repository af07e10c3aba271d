"""What all fuzz targets share: libFuzzer by way of atheris, and a corpus of sound inputs to begin with.

    NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=... python -m tests.fuzz.<target> [-runs=N] [-seed=N] [corpus ...]

Options are libFuzzer's. An input passes when the code under test gives an answer or its typed error; any
other exception, a failed check, or a crash ends the run, and the input is left in the working directory.
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
    """Run until libFuzzer has enough. Seeds are tried as they are first: they also compile all kernels."""
    seeds = list(seeds)
    for seed in seeds:
        one_input(seed)
    atheris: Any = import_module("atheris")  # it has no types, and is not there on every system
    # Only Python code can be instrumented; kernels are reached by inputs that are sound to begin with.
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
