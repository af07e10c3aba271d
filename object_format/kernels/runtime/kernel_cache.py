"""Location and validity of the compiled kernels that numba caches on disk.

numba asks a *locator* where the compiled code of a function is, and stores the locator's stamp with it. Its
own stamp is the digest of the function's file, so an edit of a called module would leave stale callers. The
stamp here is the digest of all kernels and of the function's folder.

Directories are tried in this order, and the first one that can be written is used:

1. `NUMBA_CACHE_DIR`, if it is set
2. `__pycache__` next to the source
3. the user's cache directory
4. a private directory below the directory for temporary files

An installation may be read-only, with kernels that `siltstone warm-kernels` has compiled into it. Compiled
code of the directories that cannot be written is therefore copied to the one that can.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import stat
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from numba.core import config
from numba.core.caching import CacheImpl, FunctionCache, _CacheLocator
from typing_extensions import override

from core.errors import InvalidInputError
from object_format.kernels.runtime.identity import KERNEL_DIGEST, digest_of_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FunctionType

_ROOT: Final = Path(__file__).resolve().parents[3]
_PACKAGES: Final = ("agent", "object_format", "spark_jobs")
"""Packages with compiled functions."""
_ONLY_OWNER: Final = 0o700


class KernelCacheError(InvalidInputError):
    """Compiled kernels cannot be stored safely in any directory."""


class KernelLocator(_CacheLocator):
    """Locator of compiled code for the functions of this installation."""

    def __init__(self, function: FunctionType, source: Path) -> None:
        self._py_file = str(source)  # numba reads it for warnings
        self._line = function.__code__.co_firstlineno
        self._stamp = _stamp(source.parent)
        self._directory, read_only = cache_directories(source.parent)
        pattern = f"{source.stem}.{function.__qualname__}-{self._line}.py*"
        try:
            for directory in read_only:
                _copy_compiled(directory, self._directory, pattern, self._stamp)
        except OSError as error:  # a full disk costs a compilation
            warnings.warn(f"compiled code cannot be copied: {error}", RuntimeWarning, stacklevel=2)

    @override
    def get_cache_path(self) -> str:
        return str(self._directory)

    @override
    def get_source_stamp(self) -> str:
        return self._stamp

    @override
    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    @override
    def from_function(cls, py_func: FunctionType, py_file: str) -> KernelLocator | None:
        """Return the locator of a function; None for functions of other installations, or inside archives."""
        source = Path(py_file).resolve()
        if not source.is_relative_to(_ROOT) or source.relative_to(_ROOT).parts[0] not in _PACKAGES:
            return None
        return cls(py_func, source) if source.exists() else None


def install_kernel_cache() -> None:
    """Make numba use the locator in this process, and continue if compiled code cannot be written."""
    if KernelLocator not in CacheImpl._locator_classes:  # noqa: SLF001 -- numba has no registry
        CacheImpl._locator_classes.insert(0, KernelLocator)  # noqa: SLF001
        setattr(FunctionCache, "save_overload", _save_if_possible(FunctionCache.save_overload))  # noqa: B010  # mypy wants no other way


@functools.cache
def cache_directories(folder: Path) -> tuple[Path, tuple[Path, ...]]:
    """Return the directory for compiled functions of `folder`, and those before it that cannot be written.

    Raise KernelCacheError if there is none that can be written.
    """
    read_only: list[Path] = []
    reasons: list[str] = []
    for make in _candidates(folder):
        try:
            directory = make()
        except (OSError, RuntimeError, KernelCacheError) as error:
            reasons.append(str(error))
            continue
        try:
            directory.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=directory).close()
        except OSError as error:
            reasons.append(str(error))
            read_only.append(directory)
        else:
            return directory, tuple(read_only)
    raise KernelCacheError(
        f"compiled kernels cannot be stored: {'; '.join(reasons)}",
        remedy="set NUMBA_CACHE_DIR to a directory that only this user can write",
    )


def _candidates(folder: Path) -> Iterator[Callable[[], Path]]:
    """Yield functions that return a directory each, or raise if there is none."""
    # Installations in different places have different folders, as with numba's own locators.
    name = f"{folder.name}_{hashlib.sha256(str(folder).encode()).hexdigest()[:32]}"
    configured: str = getattr(config, "CACHE_DIR", "")
    if configured:
        yield lambda: Path(configured, name)
    yield lambda: folder / "__pycache__"
    yield lambda: _user_cache() / name
    yield lambda: private_temporary_directory() / name


def _user_cache() -> Path:
    """Return the user's directory for compiled kernels. Raise RuntimeError for a user without a home."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(configured) if configured else Path.home() / ".cache"
    if not root.is_absolute():
        raise RuntimeError(f"the user's cache directory {str(root)!r} is not absolute")
    return root / "siltstone" / "kernels"


def private_temporary_directory() -> Path:
    """Return a directory below the one for temporary files that only this user can write.

    Compiled code is executed, so KernelCacheError is raised if another user owns the directory or may write.
    """
    directory = Path(tempfile.gettempdir(), f"siltstone-kernels-{os.getuid()}")
    directory.mkdir(mode=_ONLY_OWNER, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise KernelCacheError(
            f"{directory} is not a directory that only user {os.getuid()} can read and write",
            remedy="remove it, or set NUMBA_CACHE_DIR",
        )
    return directory


@functools.cache
def _stamp(folder: Path) -> str:
    of_folder = digest_of_sources(folder, recursive=False)
    return hashlib.sha256(f"{KERNEL_DIGEST} {of_folder}".encode()).hexdigest()


def _copy_compiled(source: Path, target: Path, pattern: str, stamp: str) -> None:
    """Copy the compiled code of one function, unless it is stale or the target has it already."""
    indexes = [path for path in source.glob(f"{pattern}.nbi") if _has_stamp(path, stamp)]
    for index in indexes:
        if not _has_stamp(target / index.name, stamp):
            for path in (*source.glob(f"{index.stem}.*.nbc"), index):  # the index last: it names the others
                _copy(path, target / path.name)


def _has_stamp(index: Path, stamp: str) -> bool:
    try:
        return stamp.encode() in index.read_bytes()
    except OSError:
        return False


def _copy(source: Path, target: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as copy:
        try:
            shutil.copyfile(source, copy.name)
            os.replace(copy.name, target)  # noqa: PTH105 -- atomic, as numba replaces the files
        except OSError:
            Path(copy.name).unlink()
            raise


def _save_if_possible(save: Callable[..., None]) -> Callable[..., None]:
    """Wrap numba's function that stores compiled code: a full disk costs a compilation, not the call."""

    @functools.wraps(save)
    def save_if_possible(cache: Any, signature: Any, data: Any) -> None:  # noqa: ANN401  # numba has no types
        try:
            save(cache, signature, data)
        except OSError as error:
            warnings.warn(f"compiled code cannot be stored: {error}", RuntimeWarning, stacklevel=2)

    return save_if_possible
