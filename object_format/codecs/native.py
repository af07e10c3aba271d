"""Finds the C functions of liblz4 and libzstd, for kernels that process many batches in one call.

The wheels of `lz4` and `backports.zstd` contain these libraries inside their extension modules. On most
systems the modules also export the libraries' public functions. This module looks up the stable ones by name
and checks the library versions. If they are not available, batches are passed to the Python packages one by
one, with the same result.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from object_format.codecs.codec import (
    ZSTD_LEVEL,
    ZSTD_MAX_WINDOW,
    ZSTD_SMALL_CHAIN_LOG,
    ZSTD_SMALL_HASH_LOG,
    Codec,
)
from object_format.codecs.zstd_library import EXTENSION
from object_format.kernels.codecs import lz4_frame, native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NATIVE: Final = frozenset({Codec.LZ4, Codec.ZSTD})
"""Codecs that the kernels support."""

SCRATCH_BYTES: Final = 1 << 20
"""Maximum total size of batches that are decompressed together."""

_LZ4F_VERSION: Final = 100
_ZSTD_VERSIONS: Final = range(1_04_00, 2_00_00)
"""From 1.4.0 on, all functions used here belong to the stable interface of libzstd."""

_ZSTD_PARAMETERS: Final = ((100, ZSTD_LEVEL),)
"""ZSTD_c_compressionLevel."""

_ZSTD_SMALL_PARAMETERS: Final = (*_ZSTD_PARAMETERS, (102, ZSTD_SMALL_HASH_LOG), (103, ZSTD_SMALL_CHAIN_LOG))
"""Adds ZSTD_c_hashLog and ZSTD_c_chainLog, for batches of up to `native.SMALL_SOURCE` bytes."""

_LZ4_PREFERENCES: Final = (4, 1, *(0,) * 12)
"""LZ4F_preferences_t as 32-bit integers: independent blocks of 64 KiB, as Java's readers need."""

CodecTable = npt.NDArray[np.int64]


class _Libraries:
    """The functions, named as in the libraries."""

    def __init__(self) -> None:
        self.lz4 = ctypes.CDLL(_file_of("lz4.frame._frame"))
        self.zstd = ctypes.CDLL(_file_of(EXTENSION))
        if self.lz4.LZ4F_getVersion() != _LZ4F_VERSION:
            raise OSError("unsupported version of liblz4's frame interface")
        if self.zstd.ZSTD_versionNumber() not in _ZSTD_VERSIONS:
            raise OSError("unsupported version of libzstd")
        self.zstd.ZSTD_freeCCtx(ctypes.c_void_p(self.compressor(_ZSTD_SMALL_PARAMETERS)))
        self.addresses = {
            lz4_frame.LZ4_DECOMPRESS: _address(self.lz4.LZ4_decompress_safe_usingDict),
            lz4_frame.LZ4_CHECKSUM: _address(self.lz4.XXH32),
            native.LZ4_COMPRESS: _address(self.lz4.LZ4F_compressFrame),
            native.ZSTD_DECOMPRESS: _address(self.zstd.ZSTD_decompressDCtx),
            native.ZSTD_FRAME_SIZE: _address(self.zstd.ZSTD_findFrameCompressedSize),
            native.ZSTD_COMPRESS: _address(self.zstd.ZSTD_compress2),
        }

    def make(self, function: Callable[..., int | None], *arguments: object) -> int:
        """Create a context. Raises MemoryError if the library returns none."""
        function.restype = ctypes.c_void_p  # type: ignore[attr-defined]  # ctypes has no type for a function
        made = function(*arguments)
        if not made:
            raise MemoryError
        return made

    def compressor(self, parameters: Iterable[tuple[int, int]]) -> int:
        """Create a libzstd context with these parameters. Raises OSError if the library rejects them."""
        context = self.make(self.zstd.ZSTD_createCCtx)
        for name, value in parameters:
            if self.zstd.ZSTD_isError(
                ctypes.c_size_t(self.zstd.ZSTD_CCtx_setParameter(ctypes.c_void_p(context), name, value))
            ):
                raise OSError("libzstd rejects a compression parameter")
        return context


def _file_of(module: str) -> str:
    file = import_module(module).__file__
    if file is None:
        raise OSError(f"{module} is not a separate file")
    return file


def _address(function: object) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]  # a function pointer
    assert address is not None
    return address


@cache
def _libraries() -> _Libraries | None:
    try:
        return _Libraries()
    except (ImportError, OSError, AttributeError):
        return None


class _Contexts:
    """Codec contexts of one thread, and the table that refers to them."""

    def __init__(self, libraries: _Libraries) -> None:
        self._libraries = libraries
        self._decompressor = libraries.make(libraries.zstd.ZSTD_createDCtx)
        self._compressor = libraries.compressor(_ZSTD_PARAMETERS)
        self._small_compressor = libraries.compressor(_ZSTD_SMALL_PARAMETERS)
        self._preferences = np.array(_LZ4_PREFERENCES, np.int32)
        self.codec_table: CodecTable = np.zeros(native.CODEC_TABLE_SIZE, np.int64)
        for index, address in libraries.addresses.items():
            self.codec_table[index] = address
        self.codec_table[native.LZ4_PREFERENCES] = self._preferences.ctypes.data
        self.codec_table[native.ZSTD_DECOMPRESSION_CONTEXT] = self._decompressor
        self.codec_table[native.ZSTD_COMPRESSION_CONTEXT] = self._compressor
        self.codec_table[native.ZSTD_SMALL_CONTEXT] = self._small_compressor
        self.codec_table[native.ZSTD_MAX_WINDOW] = ZSTD_MAX_WINDOW

    def __del__(self) -> None:
        self._libraries.zstd.ZSTD_freeDCtx(ctypes.c_void_p(self._decompressor))
        self._libraries.zstd.ZSTD_freeCCtx(ctypes.c_void_p(self._compressor))
        self._libraries.zstd.ZSTD_freeCCtx(ctypes.c_void_p(self._small_compressor))


class _Local(threading.local):
    contexts: _Contexts | None = None


_local = _Local()


def native_codec_table() -> CodecTable | None:
    """Return the calling thread's codec table for `kernels.codecs.native`; None if functions are missing.

    The table belongs to the calling thread and supports one kernel call at a time.
    """
    libraries = _libraries()
    if libraries is None:
        return None
    if _local.contexts is None:
        _local.contexts = _Contexts(libraries)
    return _local.contexts.codec_table
