"""The hot loops, compiled by numba: plain functions over byte arrays, without a Python object in sight.

Every length is checked against the end of its array before it is used. A kernel that meets malformed bytes
returns a `Fault` and a position, and never raises. Each releases the GIL. Compiled code is cached next to the
sources, keyed by the source file of the kernel alone: after an edit of a function that other modules call,
remove `__pycache__`.
"""

from object_format.kernels.runtime.compile_lock import install_compile_lock

install_compile_lock()
