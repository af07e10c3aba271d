"""The hot loops, compiled by numba: functions over byte arrays without Python objects.

A kernel checks every length against the end of its array before using it. It reports malformed bytes as a
`Fault` and a position, and never raises. All kernels release the GIL. Compiled code is cached under the
digest of all kernels (`object_format.kernels.runtime.identity`): after an edit of any of them, all are
compiled again.
"""

from object_format.kernels.runtime.compile_lock import install_compile_lock
from object_format.kernels.runtime.kernel_cache import install_kernel_cache

install_kernel_cache()
install_compile_lock()
