"""Kernels that run as Python while mutants are judged.

Compiling each mutant of a large kernel takes minutes, and coverage does not see which lines machine code
executes. So a target names modules that are imported without numba's decorators. The kernels that they call
stay compiled, because the intrinsics exist only there.

Integers do not overflow in Python: kernels that depend on it must be compiled.
"""

from __future__ import annotations

import re
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from typing_extensions import override

from object_format.kernels.batches import layout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

_DECORATOR: Final = re.compile(r"^@njit\(.*\)$", re.MULTILINE)


class Row(np.record):  # type: ignore[misc]  # the base of numpy's own subclass is declared to be final
    """Row of batches whose fields are attributes, as in compiled kernels, even if numpy has the same name."""

    @property
    @override
    def size(self) -> int:  # type: ignore[override]  # numpy's own is always 1
        size: int = self["size"]
        return size


# Compiled kernels treat both types alike.
setattr(layout, "BATCH_ROW", np.dtype((Row, layout.BATCH_ROW)))  # noqa: B010  # mypy: it is final


class PythonLoader(SourceFileLoader):
    """Loader of a module whose kernels stay functions of Python; `code` replaces its source."""

    def __init__(self, name: str, path: str, code: str | None = None) -> None:
        super().__init__(name, path)
        self._code = code

    @override
    def get_code(self, fullname: str) -> CodeType:
        code = Path(self.path).read_text() if self._code is None else self._code
        return compile(_DECORATOR.sub("", code), self.path, "exec")

    @override
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for intrinsic, function in (("borrowed", _same), ("prefetch", _nothing)):
            if hasattr(module, intrinsic):
                setattr(module, intrinsic, function)


class PythonKernels(MetaPathFinder):
    """Finder of the modules below `root` whose kernels run as Python: the `names`, which may change."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.names: set[str] = set()

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.names:
            return None
        source = str(self._root / f"{fullname.replace('.', '/')}.py")
        return spec_from_file_location(fullname, source, loader=PythonLoader(fullname, source))


def _same(array: object) -> object:
    return array


def _nothing(_array: object, _index: int) -> None:
    pass
