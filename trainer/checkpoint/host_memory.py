"""Control over the freed memory that the C library keeps."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of glibc's malloc.h."""
SMALL_BYTES, LARGE_BYTES = 2**20, 32 * 2**20


@contextmanager
def released() -> Iterator[None]:
    """Makes glibc return freed blocks of 1 MiB and more to the system immediately.

    glibc keeps freed blocks of up to 32 MiB for reuse: see mallopt(3). After many reads by many
    threads, they add up to as much as was read. Outside the context glibc still keeps them: steps
    reuse the blocks.
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(MMAP_THRESHOLD, SMALL_BYTES)
    try:
        yield
    finally:
        mallopt(MMAP_THRESHOLD, LARGE_BYTES)
