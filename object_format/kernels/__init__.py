"""The hot loops, compiled by numba: functions over byte arrays without Python objects.

A kernel checks every length against the end of its array before using it. It reports malformed bytes as a
`Fault` and a position, and never raises. All kernels release the GIL. Compiled code is cached next to the
sources. The cache key is the source file of the kernel alone: after a change of a function that other modules
call, remove the `__pycache__` directories below `object_format/kernels`.
"""

from object_format.kernels.runtime.compile_lock import install_compile_lock

install_compile_lock()
